// Printing a report puts all of its views on paper, one below the other.

import { make } from "./dom.js";

// views: [[title, create], ...]
export function printWhole(source, views) {
  const place = make("div", { class: "printed" });
  let made = [];

  function begin() {
    document.body.classList.add("printing");
    document.getElementById("view").after(place);
    for (const one of document.querySelectorAll("#appendix details")) one.open = true;
    made = views.map(([title, create]) => {
      const element = make("div", { class: "view" });
      place.append(make("h2", {}, title), element);
      const fail = (error) => element.append(make("p", { class: "faint" }, error.message));
      const view = create(element, { source, argument: "", fail });
      // What a report has comes without waiting: it is drawn before the page is laid out on paper.
      for (const name of view.documents) source.get(name).then((found) => view.render(name, found)).catch(fail);
      return view;
    });
  }

  function end() {
    document.body.classList.remove("printing");
    for (const view of made) view.close();
    made = [];
    place.replaceChildren();
    place.remove();
  }

  addEventListener("beforeprint", begin);
  addEventListener("afterprint", end);
}
