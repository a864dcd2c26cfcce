// Shows the fields of the chosen program, and what the job would take.
"use strict";
(() => {
  const form = document.getElementById("submit"), preview = document.getElementById("preview");
  if (!form) return;
  const program = document.getElementById("program"), alert = form.querySelector("[role=alert]");
  const WAIT_MS = 250;
  let timer = 0, asked = 0;

  const fields = () => {
    for (const part of form.querySelectorAll("[data-for]")) part.disabled = part.hidden = part.dataset.for !== program.value;
  };

  // What the body has of a chosen file: a script as text with its name, an archive in base64.
  const read = async (field) => {
    const [file] = field.files, script = field.name === "script.source";
    const url = (blob) => new Promise((done) => { const reader = new FileReader(); reader.onload = () => done(reader.result); reader.readAsDataURL(blob); });
    field.rlptoRead = !file ? {} : script ? { name: file.name.replace(/[^A-Za-z0-9_.]/g, "_").slice(-64), source: await file.text() } : { files: (await url(file)).replace(/^.*,/, "") };
  };
  const span = (hours) => (hours < 1 / 30 ? `${Math.round(hours * 3600)} s` : hours < 2 ? `${Math.round(hours * 60)} min` : `${hours.toFixed(1)} h`);
  const cell = (row, text, kind) => { const made = row.insertCell(); made.textContent = text; if (kind) made.className = kind; };

  // One row a number of GPUs, two columns a metric.
  const table = (rows, gpus) => {
    const metrics = [...new Set(rows.map((row) => row.metric))], counts = [...new Set(rows.map((row) => row.gpus))].sort((a, b) => a - b);
    const made = document.createElement("table"), head = made.createTHead().insertRow(), body = made.createTBody();
    const heading = (text, kind) => { const one = document.createElement("th"); one.textContent = text; one.className = kind; one.scope = "col"; head.append(one); };
    heading("GPUs", "num");
    for (const metric of metrics) { heading(metric === "any" ? "time" : metric, "num"); heading("GPU-hours", "num"); }
    for (const count of counts) {
      const row = body.insertRow();
      if (count === gpus) { row.className = "chosen"; row.setAttribute("aria-current", "true"); }
      cell(row, count, "num");
      for (const metric of metrics) {
        const found = rows.find((one) => one.gpus === count && one.metric === metric);
        cell(row, found ? span(found.hours) : "–", "num");
        cell(row, found ? Number(found.gpu_hours.toPrecision(3)) : "–", "num");
      }
    }
    return made;
  };

  const look = async () => {
    const number = ++asked;
    if ([...form.querySelectorAll("fieldset:not([hidden]) :required")].some((field) => !field.value)) {
      alert.textContent = "";
      preview.replaceChildren(Object.assign(document.createElement("p"), { className: "none", textContent: "Choose a script, and say how many samples an epoch has." }));
      return;
    }
    let answer, found;
    try {
      answer = await fetch("/api/v1/jobs/validate", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(window.rlptoBody(form)) });
      found = await answer.json();
    } catch { return; }
    if (number !== asked) return;
    alert.textContent = answer.ok ? "" : found.detail;
    if (!answer.ok) return;
    const said = document.createElement("p");
    said.className = "said";
    said.textContent = found.waiting ? `${found.waiting} jobs wait now; they ask for ${found.gpus_ahead} GPUs.` : "No job waits now.";
    const shown = found.preview.length ? table(found.preview, found.job.gpus) : Object.assign(document.createElement("p"), { className: "none", textContent: "Not measured: nothing is known of the speed of this program before it trains." });
    const around = document.createElement("div");
    around.className = "scroll";
    around.append(shown);
    preview.replaceChildren(around, said);
  };
  form.addEventListener("input", async (event) => {
    fields();
    if (event.target.type === "file") await read(event.target);
    clearTimeout(timer);
    timer = setTimeout(look, WAIT_MS);
  });
  fields();
  look();
})();
