// A browser starts no worker for a page that is opened from the disk. The search of the site needs one: there, a
// hidden frame runs the worker's script instead. The interface is that of Worker, as far as the search uses it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      this.ready = new Promise((resolve) => {
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        inside.importScripts = (...urls) => urls.reduce(
          (before, one) => before.then(() => load(inside.document, one)), Promise.resolve());
        load(inside.document, url).then(resolve);
      });
    }
    set onmessage(listener) { this.addEventListener("message", listener); }
    set onerror(listener) { this.addEventListener("error", listener); }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
}

function load(page, url) {
  return new Promise((resolve, reject) => {
    const script = page.createElement("script");
    Object.assign(script, { src: url, onload: resolve, onerror: reject });
    page.body.append(script);
  });
}
