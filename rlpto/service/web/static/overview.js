// The charts of the overview: fetched when something happens that they show, and while time passes.
"use strict";
(() => {
  const hours = document.getElementById("gantt-hours");
  const quietly = (fetching) => fetching.catch((wrong) => { if (!(wrong instanceof TypeError)) console.warn(wrong.message); });

  const gantt = async () => {
    const seconds = Number(hours.value) * 3600, now = Date.now() / 1000;
    const [found, { nodes }] = await Promise.all([window.rlptoGet(`allocations?since=${now - (seconds || 86400)}`), window.rlptoGet("nodes")]);
    window.rlptoGantt(found, nodes, seconds);
  };
  const volume = async () => {
    const { volume: rows } = await window.rlptoGet("volume");
    const column = (name) => rows.map((row) => (row[name] === null ? null : row[name] / 3600));
    window.rlptoDraw("volume", rows.map((row) => row.at), [
      { label: "seen", values: column("seen"), steps: true },
      { label: "forecast", values: column("forecast"), dash: [5, 4], colour: "#d97706" },
      { label: "90 %", values: column("high"), thin: true, band: true, colour: "#e8b06a" },
      { label: "10 %", values: column("low"), thin: true, colour: "#e8b06a" },
    ]);
  };
  const decisions = async () => {
    const { decisions: rows } = await window.rlptoGet("decisions");
    const x = rows.map((row) => row.at);
    const named = (key) => [...new Set(rows.flatMap((row) => Object.keys(row[key])))];
    const lines = (key) => named(key).map((name) => ({ label: name, thin: key === "parts", values: rows.map((row) => row[key][name] ?? null) }));
    window.rlptoDraw("reward", x, [{ label: "reward", values: rows.map((row) => row.reward) }, ...lines("parts")]);
    window.rlptoDraw("weight_steps", x, lines("weight_steps"));
  };

  const all = () => { quietly(gantt()); quietly(volume()); quietly(decisions()); };
  hours.addEventListener("change", () => quietly(gantt()));
  for (const name of ["job", "nodes", "decision", "all"]) document.body.addEventListener(`rlpto-${name}`, () => quietly(gantt()));
  for (const name of ["decision", "all"]) document.body.addEventListener(`rlpto-${name}`, () => { quietly(decisions()); quietly(volume()); });
  setInterval(() => { if (!document.hidden) quietly(gantt()); }, 10000);
  all();
})();
