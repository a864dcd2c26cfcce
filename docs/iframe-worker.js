// Browsers start no workers for pages that are opened as files: there the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
      document.documentElement.append(this.frame);
      this.inner = this.frame.contentWindow;
      this.inner.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      const script = Object.assign(this.inner.document.createElement("script"), { src: url });
      this.loaded = new Promise((done) => (script.onload = done));
      this.inner.document.body.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.onmessage({ data: structuredClone(data) }));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
