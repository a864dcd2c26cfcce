// Line charts by uPlot in the colours of the page.
"use strict";
(() => {
  const COLOURS = ["#0d9488", "#d97706", "#6366f1", "#db2777", "#65a30d", "#0284c7", "#9333ea", "#64748b"];
  const made = new Map();
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3)) return value.toExponential(1);
    return String(Number(value.toPrecision(4)));
  };
  // The legend shows the newest values, where the first series has one, unless somebody points at others.
  const legend = (text) => (plot, value, place, index) => text(plot.data[place][index ?? plot.data[1].findLastIndex((one) => one !== null)]);

  // series: [{label, values, scale?, band?}]; band: the series of that number and the next bound a filled band.
  // A chart without values is hidden with its card.
  const draw = (id, x, given, { time = true, xLabel = "" } = {}) => {
    const place = document.getElementById(id), old = made.get(id);
    const series = given.filter((one) => one.values.some((value) => value !== null));
    place.closest(".card").hidden = !series.length;
    const shape = JSON.stringify([series.map((one) => [one.label, one.scale ?? "y"]), time, document.documentElement.dataset.theme]);
    if (!series.length) {
      old?.plot.destroy();
      made.delete(id);
      return;
    }
    const data = [x, ...series.map((one) => one.values)];
    if (old?.shape === shape) {
      old.plot.setData(data);
      old.plot.setLegend();
      old.again = () => draw(id, x, series, { time, xLabel });
      return;
    }
    old?.plot.destroy();
    const scales = [...new Set(series.map((one) => one.scale ?? "y"))];
    const axis = { stroke: style("--faint"), grid: { stroke: style("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const plot = new uPlot({
      width: place.clientWidth || 300,
      height: 190,
      legend: { live: true },
      cursor: { y: false, points: { size: 6 } },
      // uPlot shows three years around a single point: show a minute, or one epoch.
      scales: {
        ...Object.fromEntries(scales.map((scale) => [scale, { range: (_, low, high) => (low < 0 ? uPlot.rangeNum(low, high, 0.1, true) : [0, 1.05 * high || 1]) }])),
        x: { time, range: (plot, low, high) => {
          const [x, rest] = plot.data?.[0] ?? [], half = time ? 30 : 0.5;
          return x !== undefined && rest === undefined ? [x - half, x + half] : [low, high];
        } },
      },
      axes: [
        { ...axis, values: time ? (_, ticks, __, ___, step) => ticks.map((at) => window.rlptoTick(at, step)) : undefined, space: 70, size: 30, label: xLabel || undefined, labelSize: xLabel ? 16 : undefined, labelFont: "11px system-ui" },
        ...scales.map((scale, place) => ({
          ...axis, scale, size: 52, side: place ? 1 : 3, grid: place ? { show: false } : axis.grid,
          values: (_, ticks) => ticks.map(short),
        })),
      ],
      series: [
        time ? { label: "at", value: legend(window.rlptoTime) } : { label: xLabel || "x", value: legend(short) },
        ...series.map((one, place) => ({
          label: one.label,
          scale: one.scale ?? "y",
          stroke: one.colour ?? COLOURS[place % COLOURS.length],
          width: one.thin ? 1 : 1.75,
          dash: one.dash,
          spanGaps: true,
          points: { show: (plot) => plot.data[0].length < 3 },
          paths: one.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
          value: legend(short),
        })),
      ],
      bands: series.flatMap((one, place) => (one.band ? [{ series: [place + 1, place + 2], fill: "rgba(217, 119, 6, 0.16)" }] : [])),
    }, data, place);
    plot.setLegend();
    const entry = { plot, shape, again: () => draw(id, x, series, { time, xLabel }) };
    made.set(id, entry);
  };

  const widths = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const plot = made.get(target.id)?.plot;
      if (plot && Math.abs(plot.width - contentRect.width) > 1) plot.setSize({ width: contentRect.width, height: 190 });
    }
  });
  for (const place of document.querySelectorAll(".chart")) widths.observe(place);
  addEventListener("rlpto-theme", () => { for (const entry of [...made.values()]) entry.again(); });
  window.rlptoDraw = draw;
  window.rlptoRange = (id) => { const { min, max } = made.get(id).plot.scales.x; return max - min; };
  window.rlptoGet = async (path) => {
    const answer = await fetch(`/api/v1/${path}`, { credentials: "same-origin" });
    if (answer.status === 401) location.href = "/login";
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  };
})();
