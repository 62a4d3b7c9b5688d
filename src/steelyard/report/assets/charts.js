// Makes charts interactive: values on hover and by arrow keys, a key that hides and shows, zoom. Without it, or if
// anything fails, the pictures stay. Nothing is loaded, and every text is put in as text.
const NEAR = 48;
const DRAG = 8;
let vega;

async function unpacked(id) {
  const stream = new Blob([bytes(id)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// The policy of the page allows this script by its hash. It is run only when a chart is looked at.
async function runtime() {
  const script = document.createElement("script");
  script.textContent = await unpacked(document.body.dataset.vega);
  document.head.append(script);
  return window.vegaEmbed;
}

function small(name, parent) {
  const made = document.createElement("div");
  made.className = name;
  made.hidden = true;
  parent.append(made);
  return made;
}

function place(element, left, top, width, height) {
  Object.assign(element.style, { left: `${left}px`, top: `${top}px` });
  if (width !== undefined) Object.assign(element.style, { width: `${width}px`, height: `${height}px` });
  element.hidden = false;
}

// -- one chart

class LiveChart {
  constructor(box, spec, view) {
    this.box = box;
    this.view = view;
    this.svg = box.querySelector(".view svg");
    this.hidden = new Set();
    this.all = spec.usermeta.zoom;
    this.at = -1;
    this.tip = small("tip", box);
    this.tip.setAttribute("role", "status");
    this.ring = small("ring", box);
    this.band = small("band", box);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.press(event));
    this.svg.addEventListener("pointerleave", () => this.quiet());
    box.addEventListener("keydown", (event) => this.type(event));
    box.addEventListener("blur", () => this.quiet());
    window.addEventListener("scroll", () => this.told && this.tell(this.told));
    this.keys();
    if (this.all) this.zoomable();
  }

  // The marks that say something, with their places in the picture.
  marks() {
    const found = [];
    const [left, top] = this.origin();
    const walk = (mark, x, y) => {
      if (this.hidden.has((mark.name || "").split("_")[0])) return;
      for (const item of mark.items) {
        if (mark.marktype === "group") for (const inner of item.items) walk(inner, x + (item.x || 0), y + (item.y || 0));
        else if (item.datum && item.datum.tip) found.push(this.mark(item, mark.marktype, x, y));
      }
    };
    for (const group of this.view.scenegraph().root.items) for (const inner of group.items) walk(inner, left, top);
    return found.filter((mark) => mark.inside).sort((a, b) => a.x - b.x || b.y - a.y);
  }

  mark(item, kind, x, y) {
    const area = kind === "rect" ? item.bounds : null;
    const at = area ? [(area.x1 + area.x2) / 2, (area.y1 + area.y2) / 2] : [item.x, item.y];
    const inside = at[0] >= -1 && at[0] <= this.view.width() + 1;
    const box = area && { left: area.x1 + x, right: area.x2 + x, top: area.y1 + y, bottom: area.y2 + y };
    return { x: at[0] + x, y: at[1] + y, tip: item.datum.tip.join("\n"), line: kind === "line", inside, box };
  }

  // The upper left corner of the axes in the picture.
  origin() {
    const [x, y] = this.view.origin();
    const { left, top } = this.view.padding();
    return [x + left, y + top];
  }

  here(event) {
    return new DOMPoint(event.clientX, event.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
  }

  point(event) {
    if (this.from !== undefined) return this.drag(event);
    const at = this.here(event);
    let best = null;
    let nearest = NEAR;
    for (const mark of this.marks()) {
      const in_box = mark.box && at.x >= mark.box.left && at.x <= mark.box.right && at.y >= mark.box.top && at.y <= mark.box.bottom;
      // Along a line, any place above or below it will do.
      const away = in_box ? 0 : mark.box ? NEAR : Math.hypot(at.x - mark.x, (at.y - mark.y) * (mark.line ? 0.15 : 1));
      if (away < nearest) [best, nearest] = [mark, away];
    }
    if (best) this.tell(best);
    else this.quiet();
  }

  tell(mark) {
    this.told = mark;
    const spot = new DOMPoint(mark.x, mark.y).matrixTransform(this.svg.getScreenCTM());
    this.tip.textContent = mark.tip;
    this.ring.hidden = Boolean(mark.box);
    if (!mark.box) place(this.ring, spot.x, spot.y);
    place(this.tip, 0, 0);
    const { width, height } = this.tip.getBoundingClientRect();
    const left = spot.x + 14 + width > innerWidth ? spot.x - 14 - width : spot.x + 14;
    place(this.tip, Math.max(4, left), Math.max(4, Math.min(spot.y - height - 8, innerHeight - height - 4)));
  }

  quiet() {
    this.tip.hidden = this.ring.hidden = true;
    this.told = null;
    this.at = -1;
  }

  type(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    // A picture that scrolls keeps its arrow keys.
    if (event.target === this.box && step && this.box.scrollWidth <= this.box.clientWidth) {
      const marks = this.marks();
      if (!marks.length) return;
      const next = this.at < 0 && step < 0 ? marks.length - 1 : this.at + step;
      this.at = Math.max(0, Math.min(marks.length - 1, next));
      this.tell(marks[this.at]);
      event.preventDefault();
    } else if (event.key === "Escape") {
      this.quiet();
    }
  }

  // -- the key

  groups(name) {
    return this.svg.querySelectorAll(`g[class*=" ${name}_"]`);
  }

  keys() {
    for (let n = 0; this.groups(`key${n}`).length; n += 1) {
      if (this.groups(`series${n}`).length) this.button(n, [...this.groups(`key${n}`)]);
    }
  }

  button(number, parts) {
    const name = parts.find((part) => part.textContent.trim());
    name.setAttribute("role", "button");
    name.setAttribute("tabindex", "0");
    name.setAttribute("aria-label", name.textContent);
    const turn = () => {
      const off = !this.hidden.delete(`series${number}`);
      if (off) this.hidden.add(`series${number}`);
      name.setAttribute("aria-pressed", String(!off));
      for (const part of parts) part.classList.toggle("off", off);
      for (const part of this.groups(`series${number}`)) part.classList.toggle("gone", off);
      this.quiet();
    };
    name.setAttribute("aria-pressed", "true");
    name.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      turn();
    });
    for (const part of parts) {
      part.classList.add("key");
      part.removeAttribute("aria-hidden");
      part.addEventListener("click", turn);
    }
  }

  // -- zoom

  zoomable() {
    const hint = document.createElement("p");
    hint.className = "hint";
    hint.textContent = "Drag sideways to zoom in. ";
    this.reset = document.createElement("button");
    this.reset.type = "button";
    this.reset.textContent = "Show all";
    this.reset.disabled = true;
    this.reset.addEventListener("click", () => this.zoom(this.all));
    hint.append(this.reset);
    this.box.after(hint);
    this.svg.classList.add("zoom");
    this.svg.addEventListener("dblclick", () => this.zoom(this.all));
    window.addEventListener("pointerup", (event) => this.release(event));
  }

  press(event) {
    if (!this.all || event.pointerType !== "mouse" || event.target.closest(".key")) return this.point(event);
    const at = this.here(event);
    const [left, top] = this.origin();
    if (at.y < top || at.y > top + this.view.height()) return;
    this.from = Math.max(left, Math.min(left + this.view.width(), at.x));
    event.preventDefault();
    this.box.focus({ preventScroll: true });
  }

  drag(event) {
    const [left, top] = this.origin();
    this.to = Math.max(left, Math.min(left + this.view.width(), this.here(event).x));
    const frame = this.svg.getScreenCTM();
    const start = new DOMPoint(Math.min(this.from, this.to), top).matrixTransform(frame);
    const end = new DOMPoint(Math.max(this.from, this.to), top + this.view.height()).matrixTransform(frame);
    this.quiet();
    place(this.band, start.x, start.y, end.x - start.x, end.y - start.y);
  }

  release() {
    if (this.from === undefined) return;
    const ends = [this.from, this.to ?? this.from].sort((a, b) => a - b);
    this.from = this.to = undefined;
    this.band.hidden = true;
    const scale = this.view.scale("x");
    const [left] = this.origin();
    if (ends[1] - ends[0] >= DRAG) this.zoom(ends.map((end) => Number(scale.invert(end - left))));
  }

  async zoom(shown) {
    this.reset.disabled = shown === this.all;
    await this.view.signal("shown", shown).runAsync();
  }
}

// The horizontal axis shows what the signal says. What leaves it is cut off.
function with_zoom(spec) {
  const scale = spec.scales.find((one) => one.name === "x");
  spec.signals = [...(spec.signals || []), { name: "shown", value: spec.usermeta.zoom }];
  scale.domain = { signal: "shown" };
  for (const mark of spec.marks) if (!mark.name.startsWith("key")) mark.clip = true;
}

async function show(box) {
  const room = document.createElement("div");
  room.className = "view";
  try {
    const spec = JSON.parse(await unpacked(box.dataset.chart));
    spec.usermeta = spec.usermeta || {};
    if (spec.usermeta.zoom) with_zoom(spec);
    // Screen readers have the description, the table, and the marks by arrow keys.
    for (const mark of spec.marks) mark.aria = false;
    vega = vega || runtime();
    const embed = await vega;
    const never = () => Promise.reject(new Error("a report loads nothing"));
    box.append(room);
    const options = { mode: "vega", ast: true, renderer: "svg", actions: false, defaultStyle: false, tooltip: false,
      hover: false, logLevel: 1, loader: { load: never, sanitize: never, http: never, file: never } };
    const { view } = await embed(room, spec, options);
    const [drawn, image] = [room.querySelector("svg"), box.querySelector("img")];
    drawn.setAttribute("role", "group");
    drawn.setAttribute("aria-label", image.alt);
    // As large as the picture, so that nothing on the page moves.
    room.style.width = `${image.naturalWidth}px`;
    room.style.aspectRatio = `${image.naturalWidth} / ${image.naturalHeight}`;
    new LiveChart(box, spec, view);
    box.classList.add("live");
  } catch {
    room.remove();
    box.classList.add("still");
  }
}

window.addEventListener("load", () => {
  if (!window.DecompressionStream || !window.IntersectionObserver) return;
  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) {
        watch.unobserve(target);
        show(target);
      }
    }
  }, { rootMargin: "100px" });
  for (const box of document.querySelectorAll("[data-chart]")) watch.observe(box);
});
