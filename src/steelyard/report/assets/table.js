// Sorts, filters and copies the table of all configurations. Every text is set as text. Reading works without it.
const collator = new Intl.Collator("en", { numeric: true });
const NEXT = { none: "ascending", ascending: "descending", descending: "none" };
const STEP = 60;
const views = new Map();

function made(name, text, ...inside) {
  const part = document.createElement(name);
  part.append(text, ...inside);
  return part;
}

class View {
  constructor(table) {
    this.table = table;
    this.heads = [...table.tHead.rows[0].cells];
    this.rows = [...table.tBodies[0].rows];
    this.inOrder = [...this.rows];
    this.number = new Map(this.rows.map((row, number) => [row, number]));
    this.keys = [];
    this.choices = [];
    this.status = made("p", "");
    this.status.setAttribute("role", "status");
    const tools = made("div", "");
    tools.className = "tools";
    this.heads.forEach((head, place) => {
      const button = made("button", "", ...head.childNodes);
      button.type = "button";
      button.addEventListener("click", () => this.sort(place));
      head.append(button);
      if ("filter" in head.dataset) this.offer(tools, place, head.textContent);
    });
    this.all = made("button", "Show all at once");
    this.all.type = "button";
    this.all.addEventListener("click", () => this.show(Infinity));
    tools.append(this.status, this.all);
    const box = table.parentElement;
    box.before(tools);
    box.addEventListener("scroll", () => {
      const near = box.scrollTop + 2 * box.clientHeight > box.scrollHeight;
      if (near && !this.all.hidden) this.show(this.limit + STEP);
    }, { passive: true });
    new ResizeObserver(() => this.stick()).observe(table);
    this.show(STEP);
  }

  texts(place) {
    return this.rows.map((row) => row.cells[place].textContent);
  }

  offer(tools, place, name) {
    const texts = this.texts(place);
    const values = [...new Set(texts)];
    if (values.length < 2) return;
    const choice = made("select", "", made("option", "all"), ...values.map((value) => made("option", value)));
    choice.addEventListener("change", () => this.show(STEP));
    this.choices.push({ choice, values, texts });
    tools.append(made("label", `${name}: `, choice));
  }

  // What rows are sorted by: numbers where the column has any, else texts. Null is unknown.
  key(place) {
    if (!this.keys[place]) {
      const numbers = this.rows.map((row) => row.cells[place].dataset.v);
      const texts = this.texts(place);
      const found = numbers.some((value) => value !== undefined)
        ? numbers.map((value) => (value === undefined ? null : Number(value)))
        : texts.map((value) => (value === "" || value === "-" ? null : value));
      this.keys[place] = new Map(this.rows.map((row, number) => [row, found[number]]));
    }
    return this.keys[place];
  }

  sort(place) {
    const head = this.heads[place];
    const way = NEXT[head.getAttribute("aria-sort") || "none"];
    for (const other of this.heads) other.removeAttribute("aria-sort");
    if (way === "none") {
      this.inOrder = [...this.rows];
    } else {
      head.setAttribute("aria-sort", way);
      const key = this.key(place);
      const sign = way === "ascending" ? 1 : -1;
      this.inOrder.sort((one, other) => {
        const [a, b] = [key.get(one), key.get(other)];
        if (a === null || b === null) return (a === null) - (b === null);
        return sign * (typeof a === "number" ? a - b : collator.compare(a, b));
      });
    }
    this.show(STEP);
    this.table.tBodies[0].append(...this.inOrder);
  }

  // Show the rows that the filters keep, at first only as many as the reader sees: drawing them takes the time.
  show(limit) {
    const wanted = this.choices.filter(({ choice }) => choice.selectedIndex > 0);
    this.limit = limit;
    this.kept = this.inOrder.filter((row) => wanted.every(({ choice, values, texts }) =>
      texts[this.number.get(row)] === values[choice.selectedIndex - 1]));
    const seen = new Set(this.kept.slice(0, limit));
    for (const row of this.rows) if (row.hidden === seen.has(row)) row.hidden = !seen.has(row);
    this.status.textContent = `${this.kept.length} of ${this.rows.length} rows`;
    this.all.hidden = seen.size === this.kept.length;
  }

  // The columns of settings stay in sight, if they leave room for the others.
  stick() {
    let left = 0;
    this.heads.slice(0, this.table.dataset.keys).forEach((head, place) => {
      this.table.style.setProperty(`--left-${place + 1}`, `${left}px`);
      left += head.getBoundingClientRect().width;
    });
    this.table.classList.toggle("stuck", left < this.table.parentElement.clientWidth / 2);
  }

  async copy(button) {
    if (!navigator.clipboard) throw new Error("the browser allows it only for files and https; use Save as CSV");
    const packed = new Blob([bytes(button.dataset.copy)]).stream();
    const lines = (await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).text()).split("\n");
    const first = Number(button.dataset.first);
    const chosen = this.kept.map((row) => lines[first + this.number.get(row)]);
    const after = lines.slice(first + this.rows.length);
    await navigator.clipboard.writeText([...lines.slice(0, first), ...chosen, ...after].join("\n"));
    this.status.textContent = `Copied ${chosen.length} of ${this.rows.length} rows as ${button.dataset.kind}`;
  }
}

for (const table of document.querySelectorAll("table.main")) views.set(table, new View(table));
document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  const view = button && views.get(button.closest(".block").querySelector("table.main"));
  if (view) view.copy(button).catch((error) => { view.status.textContent = `Not copied: ${error.message}`; });
});
// A link to a row, or paper, needs rows that are not in sight.
function arrive() {
  for (const box of document.querySelectorAll("[popover]:popover-open")) box.hidePopover();
  const row = document.querySelector("table.main tr[hidden]:target");
  if (!row) return;
  const view = views.get(row.closest("table"));
  for (const { choice } of view.choices) choice.selectedIndex = 0;
  view.show(Infinity);
  row.scrollIntoView();
}
window.addEventListener("hashchange", arrive);
window.addEventListener("load", arrive);
window.addEventListener("beforeprint", () => {
  for (const view of views.values()) view.show(Infinity);
});
