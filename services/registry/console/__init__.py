"""The web console: plain pages made by the server, readable without JavaScript.

Guarantees: everything shown is escaped, and the content security policy allows no script but our one file.
Does not: change anything; it is read-only."""
