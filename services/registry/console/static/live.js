// Keeps the parts marked data-live fresh: reads the page again and swaps them in.
"use strict";
const PERIOD = 2000;

async function refresh() {
  if (document.hidden || !document.querySelector("[data-live]")) return;
  const response = await fetch(location.href, { credentials: "same-origin" });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const old of document.querySelectorAll("[data-live][id]")) {
    const next = fresh.getElementById(old.id);
    if (next) old.replaceWith(next);
    else old.removeAttribute("data-live");
  }
}

async function loop() {
  try {
    await refresh();
    document.body.classList.remove("offline");
  } catch {
    document.body.classList.add("offline");
  }
  setTimeout(loop, PERIOD);
}
setTimeout(loop, PERIOD);
