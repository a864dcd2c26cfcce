// Curves, allocations and log of one job; while it is not over, what is new is fetched.
"use strict";
(() => {
  const root = document.getElementById("page"), id = root.dataset.id;
  const log = document.getElementById("logs"), follow = document.getElementById("follow");
  const LOOK_MS = 1500, MOST_LINES = 5000;
  const points = [];
  let since = 0, line = -1000, over = false;

  const curves = async () => {
    const page = await window.rlptoGet(`jobs/${id}/curves?since=${since}`);
    since = page.next;
    if (!page.points.length) return;
    points.push(...page.points);
    const x = points.map((point) => point.epoch), column = (name) => points.map((point) => point[name]);
    const epochs = { time: false, xLabel: "epochs" };
    window.rlptoDraw("loss", x, [{ label: "loss", values: column("loss") }, { label: "accuracy", values: column("accuracy"), scale: "accuracy" }], epochs);
    window.rlptoDraw("gpus", points.map((point) => point.at), [{ label: "GPUs", values: column("gpus"), steps: true }, { label: "goodput [samples/s]", values: column("goodput"), scale: "goodput" }]);
    window.rlptoDraw("noise", x, [{ label: "noise scale [samples]", values: column("noise_scale") }], epochs);
  };
  const lines = async () => {
    for (;;) {
      const page = await window.rlptoGet(`jobs/${id}/logs?from=${line}&limit=1000`);
      over = page.over;
      if (page.lines.length) {
        log.append(page.lines.map((one) => `${window.rlptoTime(one.at)}  ${one.text}\n`).join(""));
        while (log.childNodes.length > MOST_LINES / 1000 * 4) log.firstChild.remove();
        if (follow.checked) log.scrollTop = log.scrollHeight;
      }
      if (page.lines.length || line > 0) line = page.next;
      if (page.lines.length < 1000) return;
    }
  };
  const spans = async () => window.rlptoGantt(await window.rlptoGet(`allocations?job=${id}`), [], null);

  const look = async () => {
    const ended = over;
    if (!document.hidden) {
      try { await Promise.all([curves(), lines(), spans()]); } catch (wrong) { if (!(wrong instanceof TypeError)) console.warn(wrong.message); }
    }
    if (!ended) setTimeout(look, LOOK_MS);
  };
  look();
})();
