// The page: reads its data, starts its views, and shows the one that the address names.
"use strict";

const Page = (() => {
  const { byId } = View;
  // A view that lacks what it needs, such as wagers about models that somebody else trained, is not in the page.
  const ALL = { look: Look, break: Break, grow: Grow };
  const VIEWS = Object.fromEntries(Object.entries(ALL).filter(([name]) => byId(name)));
  let app, shown;

  // Show what the address says. before: the address until now, which the link to a view that is left keeps.
  function route(before = "") {
    const parts = new URLSearchParams(location.hash.slice(1));
    const name = parts.get("view") in VIEWS ? parts.get("view") : "look";
    if (shown && shown !== name) {
      VIEWS[shown].hide();
      linkTo(shown).href = `#${before}`;
    }
    shown = name;
    for (const other of Object.keys(VIEWS)) {
      byId(other).hidden = other !== name;
      if (other === name) linkTo(other).setAttribute("aria-current", "page");
      else linkTo(other).removeAttribute("aria-current");
    }
    linkTo(name).href = linkTo(name).dataset.first;
    VIEWS[name].show(parts, before);
  }

  const linkTo = (name) => document.querySelector(`nav [data-view="${name}"]`);
  const hashOf = (address) => new URL(address).hash.slice(1);

  // Another place in the page, as a step that the back button undoes. parts: name -> value, or a hash without "#".
  function go(parts) {
    const before = location.hash.slice(1);
    history.pushState(null, "", `#${new URLSearchParams(parts)}`);
    route(before);
  }

  function start() {
    const data = JSON.parse(byId("data").textContent);
    const special = new Set(Object.values(data.special));
    const words = data.vocabulary.filter((_, token) => !special.has(token));
    const index = new Map(data.vocabulary.map((word, token) => [word, token]));
    const language = {
      vocabulary: data.vocabulary, words, index, special: data.special, maxLength: data.max_length,
      groups: data.word_groups, verbs: data.verbs, meanings: data.meanings,
    };
    const models = new Map(data.models.map((record) => [record.name, Attention.load(record)]));
    View.useColors(data.weight_map.light, data.weight_map.dark, data.role_colors);
    app = { data, language, models, go };
    byId("views").hidden = false;
    for (const view of Object.values(VIEWS)) view.start(app);
    addEventListener("hashchange", (event) => route(hashOf(event.oldURL)));
    route();
  }

  start();
  // For the curious, in the console of the browser: Page.state().
  return { state: Look.state, redraw: Look.redraw, models: () => app.models, language: () => app.language };
})();
