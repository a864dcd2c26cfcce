// Which job held which GPUs when: one lane a GPU, nodes one below the other, on a canvas, for up to 10,000 spans.
"use strict";
(() => {
  const canvas = document.getElementById("gantt");
  const said = document.getElementById("gantt-said");
  const hint = said.textContent;
  const LEFT = 84, BOTTOM = 22, LEAST_LANE = 3, MOST_LANE = 22, USUAL = 20;
  let bars = [], lanes = [], until = 0, since = 0, chosen = -1, spans = [], names = {}, hosts = {}, nodes = [];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The host's name and the beginning of the node's id, cut to what fits.
  const nodeName = (node, pen) => {
    const host = (hosts[node] ?? "").split(".")[0];
    let name = host ? `${host} ${node.slice(0, 4)}` : node.slice(0, 14);
    while (pen && name.length > 4 && pen.measureText(name).width > LEFT - 6) name = name.slice(0, -1);
    return name;
  };

  // A lane for every GPU of a node: each span takes as many as it has GPUs, the first that are free then.
  const place = () => {
    const byNode = new Map(nodes.map((node) => [node.id, { id: node.id, gpus: node.gpus, spans: [] }]));
    for (const span of spans) {
      if (!byNode.has(span.node)) byNode.set(span.node, { id: span.node, gpus: 0, spans: [] });
      byNode.get(span.node).spans.push(span);
    }
    bars = [];
    lanes = [];
    for (const node of byNode.values()) {
      const first = lanes.length, free = new Array(node.gpus).fill(-Infinity);
      for (const span of node.spans.sort((a, b) => a.started - b.started)) {
        let need = span.gpus;
        for (let lane = 0; need > 0; lane++) {
          if (lane === free.length) free.push(-Infinity);
          if (free[lane] > span.started + 1e-6) continue;
          free[lane] = span.ended ?? Infinity;
          bars.push({ lane: first + lane, span });
          need--;
        }
      }
      free.forEach((_, lane) => lanes.push({ node: node.id, first: lane === 0, gpus: free.length }));
    }
    bars.sort((a, b) => a.span.started - b.span.started || a.lane - b.lane);
  };

  const draw = () => {
    const scale = devicePixelRatio || 1;
    const laneHeight = Math.max(LEAST_LANE, Math.min(MOST_LANE, 210 / Math.max(lanes.length, 1)));
    const height = Math.max(60, Math.round(lanes.length * laneHeight) + BOTTOM);
    canvas.style.height = `${height}px`;
    const width = canvas.clientWidth;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    const x = (at) => LEFT + ((at - since) / (until - since)) * (width - LEFT - 4);
    axis(pen, x, width, height);
    lanes.forEach((lane, number) => {
      pen.fillStyle = style("--ground");
      pen.fillRect(LEFT, number * laneHeight + 0.5, width - LEFT - 4, Math.max(1, laneHeight - 1));
      if (!lane.first) return;
      if (number) { pen.fillStyle = style("--line"); pen.fillRect(0, number * laneHeight - 0.5, width, 1); }
      if (lane.gpus * laneHeight < 10) return;
      pen.fillStyle = style("--faint");
      pen.textBaseline = "middle";
      pen.fillText(nodeName(lane.node, pen), 0, (number + Math.min(lane.gpus, 2) / 2) * laneHeight);
    });
    const drawn = bars.map((bar, number) => {
      const begin = Math.max(LEFT, x(bar.span.started)), end = Math.min(width - 4, x(bar.span.ended ?? until));
      if (end <= LEFT || begin >= width) return null;
      pen.fillStyle = bar.span.job ? window.rlptoColour(bar.span.job) : style("--other");
      pen.fillRect(begin, bar.lane * laneHeight + 1, Math.max(1, end - begin), Math.max(1, laneHeight - 2));
      if (number === chosen) { pen.strokeStyle = style("--text"); pen.lineWidth = 2; pen.strokeRect(begin, bar.lane * laneHeight + 1, Math.max(2, end - begin), laneHeight - 2); }
      return { begin, end: Math.max(begin + 2, end), top: bar.lane * laneHeight, bottom: (bar.lane + 1) * laneHeight };
    });
    canvas.rlptoDrawn = drawn;
    canvas.dataset.bars = String(drawn.filter(Boolean).length);
  };

  const axis = (pen, x, width, height) => {
    const length = until - since;
    const step = [10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400, 172800].find((one) => length / one <= width / 90) ?? 604800;
    pen.textBaseline = "alphabetic";
    let free = LEFT;
    const zone = new Date().getTimezoneOffset() * 60;
    for (let at = Math.ceil((since - zone) / step) * step + zone; at <= until; at += step) {
      const text = window.rlptoTick(at, step);
      pen.fillStyle = style("--grid");
      pen.fillRect(x(at), 0, 1, height - BOTTOM + 4);
      pen.fillStyle = style("--faint");
      const begin = x(at), end = begin + pen.measureText(text).width;
      if (begin < free || end > width) continue;
      pen.fillText(text, begin, height - 5);
      free = end + 8;
    }
  };

  const tell = (number) => {
    chosen = number;
    const span = bars[number]?.span;
    if (!span) { said.textContent = hint; draw(); return; }
    const took = Math.round((span.ended ?? until) - span.started);
    said.textContent = `${span.job ? names[span.job] || span.job : "another user's job"}: ${span.gpus} GPU${span.gpus === 1 ? "" : "s"} of ${nodeName(span.node)} from ${window.rlptoTime(span.started)} for ${took} s${span.ended ? "" : ", still"}`;
    draw();
  };
  const at = (event) => {
    const box = canvas.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
    return (canvas.rlptoDrawn ?? []).findLastIndex((bar) => bar && left >= bar.begin && left <= bar.end && top >= bar.top && top < bar.bottom);
  };
  const open = () => { const job = bars[chosen]?.span.job; if (job && job !== canvas.dataset.of) location.href = `/jobs/${job}`; };
  canvas.addEventListener("pointermove", (event) => { const found = at(event); if (found !== chosen) tell(found); });
  canvas.addEventListener("pointerleave", () => tell(-1));
  canvas.addEventListener("click", open);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") open();
    if (!step || !bars.length) return;
    event.preventDefault();
    tell((Math.max(chosen, step > 0 ? -1 : 0) + step + bars.length) % bars.length);
  });
  new ResizeObserver(draw).observe(canvas.parentElement);
  addEventListener("rlpto-theme", draw);

  // found: {now, spans, names, hosts}, newest span first. all: nodes that are shown even if nothing ran there. seconds:
  // shown until now; null: from the first span to the last; 0: the end of that, as long as twenty usual spans.
  window.rlptoGantt = (found, all, seconds) => {
    spans = found.spans;
    names = found.names;
    hosts = found.hosts;
    nodes = all;
    canvas.closest(".card").hidden = !spans.length && !nodes.length;
    const ends = spans.map((span) => span.ended ?? found.now), first = Math.min(...spans.map((span) => span.started));
    const lasts = spans.slice(0, USUAL).map((span, number) => ends[number] - span.started).sort((a, b) => a - b);
    until = seconds || !spans.length ? found.now : Math.max(...ends);
    const length = seconds || (spans.length ? (seconds === 0 ? USUAL * lasts[lasts.length >> 1] : Infinity) : 3600);
    since = Math.min(until - 10, seconds || !spans.length ? until - length : Math.max(first, until - length));
    place();
    draw();
  };
})();
