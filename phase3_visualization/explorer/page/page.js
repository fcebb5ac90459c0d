// The page: reads its data, starts its views, and shows the one that the address names.
//
// The address bar holds the view: what a reader sees can be linked, e.g.
//   #words=the+cat+sat+on+the+mat&hide=2&query=2&head=1.2&step=340&without=0.3
// A hash may come from anyone: each value is checked, and one that makes no sense is left out, silently, so that a
// broken link still opens the page.
"use strict";

const Address = (() => {
  const whole = (text, low, high) => {
    const number = /^\d{1,6}$/.test(text ?? "") ? Number(text) : NaN;
    return number >= low && number <= high ? number : null;
  };
  const decimal = (text, low, high) => {
    const number = text ? Number(text) : NaN;
    return number >= low && number <= high ? number : null;
  };
  const list = (text) => (text ? text.split("_") : []);

  // "1.2" -> {layer: 1, head: 2}, or null where the model has no such head.
  const readHead = (text) => {
    if (!Levers.allHeads().includes(text)) return null;
    const [layer, head] = text.split(".").map(Number);
    return { layer, head };
  };

  // The state as a hash without "#". Words, hidden word and head always stand in it: with which of them the page opens
  // depends on how its models were trained.
  function write(state, first) {
    const parts = new URLSearchParams();
    const set = (name, value, usual) => {
      if (value !== usual) parts.set(name, value);
    };
    set("story", state.story, null);
    parts.set("words", state.words.join(" "));
    if (state.hidden.length) parts.set("hide", state.hidden.join("_"));
    parts.set("head", Levers.nameOf(state.layer, state.head));
    parts.set("query", state.query);
    set("run", state.run, first.run);
    set("step", state.step, Runs.lastStep(state.run));
    set("mask", state.causal ? "on" : "off", "off");
    set("divisor", state.divisor, null);
    set("without", state.removed.join("_"), "");
    return parts.toString();
  }

  // The state that a hash describes; first(words) gives what it leaves open.
  function read(parts, language, first) {
    const { words: all, maxLength } = language;
    const words = (parts.get("words") ?? "").split(" ").filter(Boolean);
    const known = words.length > 0 && words.length <= maxLength && words.every((word) => all.includes(word));
    const state = first(known ? words : null);
    const last = state.words.length - 1;
    const hidden = list(parts.get("hide")).map((part) => whole(part, 0, last)).filter((at) => at !== null);
    if (known || hidden.length) state.hidden = hidden;
    state.query = whole(parts.get("query"), 0, last) ?? state.hidden[0] ?? state.query;
    if (/^(1|g\d{1,6})$/.test(parts.get("run"))) state.run = "1"; // "g7": older links asked for a seed
    state.step = whole(parts.get("step"), 0, Runs.lastStep(state.run)) ?? Runs.lastStep(state.run);
    state.causal = parts.get("mask") === "on";
    state.divisor = decimal(parts.get("divisor"), 0.05, 100);
    state.removed = [...new Set(list(parts.get("without")).filter(readHead))];
    const shown = known && state.hidden.length ? Levers.costliest(state, language) : {};
    return Object.assign(state, readHead(parts.get("head")) ?? shown);
  }

  // Changes of one kind that follow each other quickly (typing, a slider) are one step for the back button.
  const TOGETHER = 900; // milliseconds
  const LATER = 300; // browsers refuse too many changes of the address in a short time
  let last = { kind: null, at: -Infinity };
  let timer;

  function keep(hash, kind) {
    const now = performance.now();
    const goesOn = kind === last.kind && now - last.at < TOGETHER;
    last = { kind, at: now };
    clearTimeout(timer);
    if (goesOn) timer = setTimeout(() => View.remember("replaceState", hash()), LATER);
    else if (`#${hash()}` !== location.hash) View.remember("pushState", hash());
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
  const ALL = { look: Look, break: Break };
  const VIEWS = new Map(Object.entries(ALL).filter(([name]) => byId(name)));
  let app, shown;

  // Show what the address says. before: the address until now, which the link to a view that is left keeps.
  function route(before = "") {
    const parts = new URLSearchParams(location.hash.slice(1));
    const name = VIEWS.has(parts.get("view")) ? parts.get("view") : "look";
    if (shown && shown !== name) {
      document.querySelector("nav [aria-current]").href = `#${before}`; // of the two links to the first view the one in use
    }
    shown = name;
    for (const other of VIEWS.keys()) byId(other).hidden = other !== name;
    for (const link of document.querySelectorAll("nav [data-view]")) {
      link.removeAttribute("aria-current");
      if (link.dataset.view === name) link.href = link.dataset.first;
    }
    linkTo(name).setAttribute("aria-current", "page"); // the first view says itself which of its two links it is
    VIEWS.get(name).show(parts, before);
  }

  const linkTo = (name) => document.querySelector(`nav [data-view="${name}"]`);
  const hashOf = (address) => new URL(address).hash.slice(1);

  // Another place in the page, as a step that the back button undoes. parts: name -> value, or a hash without "#".
  function go(parts) {
    const before = location.hash.slice(1);
    View.remember("pushState", new URLSearchParams(parts));
    route(before);
  }

  // The model of the lessons, as the wagers ask it: whatever the stage shows.
  function ofLessons({ model, layout, runs }) {
    const stop = runs[0].stops.at(-1);
    return { ...Network.load({ ...model, parameters: layout, ...stop }), heads: stop.heads };
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
    View.useColors(data.weight_map, data.role_colors);
    app = { data, language, go, modelOfLessons: () => ofLessons(data) };
    byId("views").hidden = false;
    for (const view of VIEWS.values()) view.start(app);
    document.querySelector("footer").append(...View.share("send this view"));
    addEventListener("hashchange", (event) => route(hashOf(event.oldURL)));
    route();
  }

  start();
  // For the curious, in the console of the browser: Page.state().
  return { state: Look.state, redraw: Look.redraw, language: () => app.language };
})();
