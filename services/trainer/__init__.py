"""The trainer: settled groups become policy versions."""
