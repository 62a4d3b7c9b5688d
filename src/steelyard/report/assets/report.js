// Saves embedded files, and opens folded parts when a link or printing needs them. Reading works without it.
"use strict";
document.documentElement.classList.add("js");

function bytes(id) {
  const text = atob(document.getElementById(id).textContent);
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

async function save(button) {
  let blob = new Blob([bytes(button.dataset.from)]);
  let name = button.dataset.name;
  if (window.DecompressionStream) {
    blob = await new Response(blob.stream().pipeThrough(new DecompressionStream("gzip"))).blob();
  } else {
    name += ".gz";
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([blob], { type: button.dataset.type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function unfold() {
  const wanted = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = wanted && wanted.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  if (wanted) wanted.scrollIntoView();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-from]");
  if (button) save(button);
});
window.addEventListener("hashchange", unfold);
window.addEventListener("load", unfold);
window.addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details.fold:not([open])")) {
    fold.open = true;
    fold.dataset.printed = "";
  }
});
window.addEventListener("afterprint", () => {
  for (const fold of document.querySelectorAll("details[data-printed]")) {
    fold.open = false;
    delete fold.dataset.printed;
  }
});
