// The page: reads its data, starts its views, and shows the one that the address names.
//
// The address bar holds the view: what a reader sees can be linked, e.g.
//   #words=the+cat+sat+on+the+mat&hide=2&query=2&head=1.2&without=0.3
// A hash may come from anyone: each value is checked, and one that makes no sense is left out, silently, so that a
// broken link still opens the page.
"use strict";

const Address = (() => {
  const whole = (text, low, high) => {
    const number = /^-?\d+$/.test(text ?? "") ? Number(text) : NaN;
    return number >= low && number <= high ? number : null;
  };
  const decimal = (text, low, high) => {
    const number = text ? Number(text) : NaN;
    return number >= low && number <= high ? number : null;
  };
  const list = (text) => (text ? text.split("_") : []);

  // "1.2" -> {layer: 1, head: 2}, or null where the model has no such head.
  function readHead(text, model) {
    const match = /^(\d+)\.(\d+)$/.exec(text ?? "");
    if (!match) return null;
    const [layer, head] = [Number(match[1]), Number(match[2])];
    return layer < model.num_layers && head < model.num_heads ? { layer, head } : null;
  }

  // "0_2_1" -> [0, 2, 1], or null where it is no order of `length` words.
  function readOrder(text, length) {
    const order = list(text).map((part) => whole(part, 0, length - 1));
    return order.length === length && !order.includes(null) && new Set(order).size === length ? order : null;
  }

  // The state as a hash without "#". Words, hidden word and head always stand in it: with which of them the page opens
  // depends on how its models were trained.
  function write(state, first) {
    const parts = new URLSearchParams();
    const set = (name, value, usual) => {
      if (value !== usual) parts.set(name, value);
    };
    set("tour", state.tour, null);
    set("model", state.model, first.model);
    parts.set("words", state.words.join(" "));
    if (state.hidden.length) parts.set("hide", state.hidden.join("_"));
    parts.set("head", `${state.layer}.${state.head}`);
    parts.set("query", state.query);
    if (state.causal !== null) parts.set("mask", state.causal ? "on" : "off");
    if (state.divisor !== null) parts.set("divisor", state.divisor);
    if (state.removed.length) parts.set("without", state.removed.join("_"));
    if (state.order !== null) parts.set("order", state.order.join("_"));
    set("temperature", state.temperature, 1);
    set("from", state.from, first.from);
    set("seed", state.seed, first.seed);
    set("written", state.written, 0);
    return parts.toString();
  }

  // The state that a hash describes; first(model, words) gives what it leaves open; models: name -> model.
  function read(parts, models, vocabulary, maxLength, first) {
    const model = models.get(parts.get("model")) ?? models.values().next().value;
    const words = (parts.get("words") ?? "").split(" ").filter(Boolean);
    const known = words.length > 0 && words.length <= maxLength && words.every((word) => vocabulary.includes(word));
    const state = first(model, known ? words : null);
    const length = state.words.length;
    const lowest = model.causal ? -1 : 0; // -1 is <start>
    const chosen = readHead(parts.get("head"), model);
    if (chosen) Object.assign(state, chosen);
    state.query = whole(parts.get("query"), lowest, length - 1) ?? state.query;
    state.causal = { on: true, off: false, __proto__: null }[parts.get("mask")] ?? null;
    state.divisor = decimal(parts.get("divisor"), 0.05, 100);
    state.removed = list(parts.get("without")).filter((name) => readHead(name, model));
    const hidden = list(parts.get("hide")).map((part) => whole(part, lowest, length - 1)).filter((i) => i !== null);
    if (known || hidden.length) state.hidden = hidden;
    state.order = readOrder(parts.get("order"), length);
    state.temperature = decimal(parts.get("temperature"), 0, 3) ?? 1;
    state.from = whole(parts.get("from"), 0, maxLength - 1) ?? state.from;
    state.seed = whole(parts.get("seed"), 0, 999999) ?? state.seed;
    state.written = whole(parts.get("written"), 0, maxLength) ?? 0;
    return state;
  }

  // Changes of one kind that follow each other quickly (typing, a slider) are one step for the back button.
  const TOGETHER = 900; // milliseconds
  const LATER = 300; // browsers refuse too many changes of the address in a short time
  let last = { kind: null, at: -Infinity };
  let timer;

  function keep(hash, kind) {
    const address = () => `#${hash()}`;
    const now = performance.now();
    const goesOn = kind === last.kind && now - last.at < TOGETHER;
    last = { kind, at: now };
    clearTimeout(timer);
    if (goesOn) timer = setTimeout(() => history.replaceState(null, "", address()), LATER);
    else if (address() !== location.hash) history.pushState(null, "", address());
  }

  function forget() {
    clearTimeout(timer);
    last = { kind: null, at: -Infinity };
  }

  return { whole, read, write, keep, forget };
})();

const Page = (() => {
  const { byId } = View;
  // A view that lacks what it needs, such as wagers about models that somebody else trained, is not in the page.
  const ALL = { look: Look, break: Break, grow: Grow };
  const VIEWS = Object.fromEntries(Object.entries(ALL).filter(([name]) => byId(name)));
  let app, shown;

  // Show what the address says. before: the address until now, which the link to a view that is left keeps.
  function route(before = "") {
    const parts = new URLSearchParams(location.hash.slice(1));
    const name = Object.hasOwn(VIEWS, parts.get("view")) ? parts.get("view") : "look";
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
