// The search runs in a web worker. A browser starts none for a page that was opened as a file; there it runs in a frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((resolve) => {
        this.frame.onload = () => resolve(this.start(url));
      });
      document.body.append(this.frame);
    }

    start(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      return new Promise((resolve) => {
        script.onload = () => resolve(inside);
        inside.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
