// Shows the view that the address asks for, gets its documents, and draws it again when they change.

import { make } from "./dom.js";

// views: name -> {create(element, tools) -> {documents, render(name, document), close, refresh}, createList}; the list
// is shown without an argument. `first`: the name of the view without an address, or a function that gives it.
// `head`: the document about which the head of the page tells; `tell` gets it, and null when the server goes or comes.
export function startViews({ source, views, first, head, tell }) {
  const place = document.getElementById("view");
  let current = null;

  function show() {
    const [name, ...rest] = decoded(location.hash.slice(1)).split("/");
    if (name === "view") return; // the link that skips to the content
    const argument = rest.join("/");
    const view = Object.hasOwn(views, name) ? name : first;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.getAttribute("href") === `#${view}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    current?.close();
    const element = make("div", { class: "view" }, make("p", { class: "faint" }, "loading …"));
    const problem = make("p", { class: "problem", role: "alert", hidden: true });
    place.replaceChildren(problem, element);
    const fail = (error) => {
      problem.textContent = error.message;
      problem.hidden = false;
    };
    const chosen = views[view];
    const build = chosen.createList && !argument ? chosen.createList : chosen.create;
    current = { ...build(element, { source, argument, fail }), fail, problem, element, isDrawn: false };
    for (const one of current.documents) load(one, current);
  }

  async function load(name, view) {
    try {
      const found = await source.get(name);
      if (name === head) tell(found, true);
      if (view === null || view !== current || !view.documents.includes(name)) return;
      view.element.hidden = false; // before it is drawn: what is hidden has no width
      view.isDrawn = true;
      view.render(name, found);
      view.problem.hidden = true;
    } catch (error) {
      if (view !== current || view === null) return;
      view.element.hidden = !view.isDrawn; // panels without content tell nothing
      view.fail(error);
    }
  }

  // `names`: of documents that have changed; null: all.
  function changed(names) {
    if (current === null) return;
    for (const name of current.documents) if (names === null || names.includes(name)) load(name, current);
    if (!current.documents.includes(head) && (names === null || names.includes(head))) load(head, null);
  }

  addEventListener("hashchange", show);
  source.follow(changed, (there) => tell(null, there));
  show();
  if (!current.documents.includes(head)) load(head, null);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
