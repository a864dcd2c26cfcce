// What happens, told to every tab of this browser by one connection: browsers open six to a host, and the seventh tab
// would hang. The tab that holds the lock listens; when it closes, another one gets the lock and goes on.
"use strict";
(() => {
  const CALM_MS = 150;
  const AGAIN_MS = 2000;
  const channel = new BroadcastChannel("rlpto");
  const waiting = new Map();
  const badge = document.getElementById("live");
  const TEXTS = { on: "live", off: "offline", broken: "reconnecting" };

  const show = (state) => {
    badge.dataset.state = state;
    badge.textContent = TEXTS[state];
  };

  // Parts of the page are fetched again at most once in a while, however much happens, and only if somebody looks.
  const tell = (name) => {
    if (document.hidden) {
      waiting.set("rlpto-all", 0);
      return;
    }
    if (waiting.get(name)) return;
    waiting.set(name, setTimeout(() => {
      waiting.delete(name);
      document.body.dispatchEvent(new Event(name));
    }, CALM_MS));
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && waiting.delete("rlpto-all")) document.body.dispatchEvent(new Event("rlpto-all"));
  });

  const hear = (said) => {
    if (said.state) show(said.state);
    if (!said.kind) return;
    tell(`rlpto-${said.kind}`);
    if (said.job) tell(`rlpto-job-${said.job}`);
  };
  const spread = (said) => {
    channel.postMessage(said);
    hear(said);
  };
  channel.onmessage = (event) => {
    if (event.data.ask) {
      if (source) channel.postMessage({ state: badge.dataset.state });
    } else hear(event.data);
  };

  let source = null;
  const listen = () => {
    source = new EventSource("/api/v1/events");
    source.onopen = () => spread({ state: "on" });
    source.onerror = () => {
      spread({ state: "broken" });
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MS);
    };
    for (const kind of ["job", "policy", "nodes", "queue", "decision", "drain"]) {
      source.addEventListener(kind, (event) => spread({ kind, job: JSON.parse(event.data).job }));
    }
    source.addEventListener("gap", () => spread({ kind: "all" }));
    source.addEventListener("end", () => {
      source.close();
      spread({ state: "broken" });
      setTimeout(listen, AGAIN_MS);
    });
  };
  // Pages that go into the back-forward cache must not keep the connection.
  addEventListener("pagehide", () => source?.close());
  if (navigator.locks) {
    channel.postMessage({ ask: true });
    navigator.locks.request("rlpto-events", () => new Promise(() => listen()));
  } else listen();  // no secure context: one connection a tab

  // A job's colour is the same wherever it is shown.
  window.rlptoColour = (job, light = 52) => {
    let hash = 2166136261;
    for (const letter of job) hash = Math.imul(hash ^ letter.charCodeAt(0), 16777619);
    const hue = ((hash >>> 0) * 137.508) % 360;
    return `hsl(${hue.toFixed(0)} ${55 + ((hash >>> 8) & 15)}% ${light}%)`;
  };
  const colour = (root) => {
    for (const part of root.querySelectorAll("[data-job]")) part.style.background = window.rlptoColour(part.dataset.job);
  };

  // Times by the reader's clock, as 2026-11-28 15:04:05; ticks of an axis as much of it as their distance needs [s].
  const clock = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
  window.rlptoTime = (at) => clock.format(at * 1000);
  window.rlptoTick = (at, step) => window.rlptoTime(at).slice(...(step < 60 ? [11] : step < 21600 ? [11, 16] : step < 86400 ? [5, 16] : [5, 10]));
  const span = (seconds) => {
    const size = Math.abs(seconds);
    if (size < 120) return `${Math.round(seconds)} s`;
    if (size < 7200) return `${Math.round(seconds / 60)} min`;
    return size < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
  };
  const times = (root) => {
    const now = Date.now() / 1000;
    for (const time of root.querySelectorAll("time[data-at]")) {
      const at = Number(time.dataset.at);
      time.textContent = `${span(Math.max(0, now - at))} ago`;
      time.title = window.rlptoTime(at);
    }
    for (const time of root.querySelectorAll("time[data-in]")) {
      const { in: at, low, high } = time.dataset;
      time.textContent = at < now ? "overdue" : `in ${span(at - now)}`;
      if (low && at >= now) time.textContent += ` (${span(Math.max(0, low - now))} – ${span(Math.max(0, high - now))})`;
      time.title = window.rlptoTime(at);
    }
  };
  const dress = (root) => { colour(root); times(root); };
  dress(document);
  setInterval(() => { if (!document.hidden) times(document); }, 1000);
  document.body.addEventListener("htmx:afterSettle", () => dress(document));

  // What is being typed or is unfolded stays while parts around it are fetched again.
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const part = event.detail.target;
    if (part.matches?.("[data-keep-open]") && part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) {
      event.detail.shouldSwap = false;
      return;
    }
    part.rlptoOpen = [...(part.querySelectorAll?.("details[open]") ?? [])].map((one) => one.id);
    if (part.rlptoOpen.length) {
      const ids = part.rlptoOpen;
      document.body.addEventListener("htmx:afterSettle", () => {
        for (const id of ids) if (id) document.getElementById(id)?.setAttribute("open", "");
      }, { once: true });
    }
  });
})();
