// Runs before the first paint, so that a chosen theme does not flash.
"use strict";
(() => {
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    window.dispatchEvent(new Event("rlpto-theme"));
  });
})();
