// Forms and buttons that ask the API: data-api, data-method, data-if-match, data-body, data-confirm, data-then.
"use strict";
(() => {
  const value = (field) => {
    const text = field.type === "password" ? field.value : field.value.trim();
    if (text === "") return null;
    if (field.dataset.type === "boolean") return text === "true";
    if (field.dataset.type === "words") return (text.match(/"[^"]*"|'[^']*'|\S+/g) ?? []).map((word) => word.replace(/^(["'])(.*)\1$/, "$2"));
    return field.dataset.type ? Number(text) : text;
  };

  const isChanged = (field) => (field.selectedOptions ? !field.selectedOptions[0].defaultSelected : field.value !== field.defaultValue);

  // The body of a form: hidden fields are left out, with data-changed those not changed, and empty ones without
  // data-may-be-empty, else null; `a.b`: b of a.
  const bodyOf = (form) => {
    const whole = form.querySelector("[data-whole]");
    if (whole) return JSON.parse(whole.value);
    const body = {};
    for (const field of form.elements) {
      if (!field.name || field.closest("[hidden]") || "inPath" in field.dataset) continue;
      if (field.value.trim() === "" && !("mayBeEmpty" in field.dataset)) continue;
      if ("changed" in form.dataset && !isChanged(field)) continue;
      if (field.dataset.labelOf) {
        const [key, ...rest] = field.value.trim().split("=");
        body[field.dataset.labelOf] = { [key]: rest.join("=") };
        continue;
      }
      const [first, second] = field.name.split(".");
      if (second === undefined) body[first] = value(field);
      else Object.assign((body[first] ??= {}), field.type === "file" ? field.rlptoRead : { [second]: value(field) });
    }
    return body;
  };

  const ask = async (from, body) => {
    const { api, method, ifMatch, confirm: sure } = from.dataset;
    if (sure && !window.confirm(sure)) return null;
    const inPath = from.querySelector?.("[data-in-path]");
    const headers = { "Content-Type": "application/json" };
    if (ifMatch) headers["If-Match"] = ifMatch;
    if (method === "POST") headers["Idempotency-Key"] = (from.dataset.key ??= crypto.randomUUID?.() ?? `${Math.random()}${Date.now()}`);
    const sends = method !== "DELETE" && body !== undefined;
    const answer = await fetch(inPath ? api.replace("{name}", encodeURIComponent(inPath.value.trim())) : api, {
      method, headers, body: sends ? JSON.stringify(body) : undefined, credentials: "same-origin",
    });
    const text = await answer.text();
    const said = text ? JSON.parse(text) : {};
    if (!answer.ok) throw new Error(said.detail ?? `the service answered ${answer.status}`);
    delete from.dataset.key;
    return said;
  };

  const after = (from, said) => {
    const then = from.dataset.then ?? "reload";
    if (then === "stay") document.body.dispatchEvent(new Event("rlpto-all"));
    else if (then === "reload") location.reload();
    else if (then === "show-token") from.querySelector("output").textContent = said.token;
    else if (then === "next") {
      const next = new URL(new URLSearchParams(location.search).get("next") ?? "/", location.origin);
      location.href = next.origin === location.origin ? next.href : "/";
    } else location.href = then.replace("{id}", said.id ?? "");
  };

  const run = async (from, body, alert, button) => {
    if (alert) alert.textContent = "";
    if (button) button.disabled = true;
    try {
      const said = await ask(from, typeof body === "function" ? body() : body);
      if (said !== null) after(from, said);
    } catch (wrong) {
      const text = wrong instanceof TypeError ? "the service does not answer; try again" : wrong.message;
      if (alert) alert.textContent = text;
      else window.alert(text);
    } finally {
      if (button) button.disabled = false;
    }
  };

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset.api) return;
    event.preventDefault();
    run(form, () => bodyOf(form), form.querySelector("[role=alert]"), form.querySelector("button"));
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-api]");
    if (button) run(button, button.dataset.body ? JSON.parse(button.dataset.body) : undefined, null, button);
  });
  window.rlptoBody = bodyOf;
})();
