// The story: seven screens about the sentence beside them, by scrolling, by keyboard, or by address, #story=3.
//
// A screen moves one thing on the stage, and says what is seen there with the numbers on the screen. Three of them ask
// before they show; what a reader bet is kept in this page alone.
"use strict";

const Story = (() => {
  const { byId, button, element, fixed, change } = View;
  const won = new Map(); // screen -> whether its bet was won; null if it was seen before it was bet on
  const told = new Map(); // screen -> what was said then
  const BETS = 3;
  let act, language, texts, sections;
  let seen; // what is on the stage
  let asked = null; // the head that screen 6 asks about
  let drawn = ""; // what all screens were drawn for
  let scrolled = false; // by the reader: only then does a screen that comes into sight move the stage

  const said = (text) => element("p", {}, text);
  const row = (...parts) => element("div", { class: "row" }, ...parts);
  const word = (token) => `“${language.vocabulary[token]}”`;
  const atEnd = () => ({ run: "0", step: Runs.lastStep("0"), removed: [] });

  function bet(screen, isRight, changes, text = "") {
    if (!won.has(screen)) won.set(screen, isRight); // only the first answer counts
    told.set(screen, text);
    act(changes, "bet");
    sections[screen - 1].querySelector(".verdict")?.focus();
  }

  function verdict(screen, text) {
    const isRight = won.get(screen);
    return element("p", { class: `verdict ${isRight ? "won" : "lost"}`, tabindex: "-1" },
      element("b", {}, isRight ? "Right. " : "No. "), text);
  }

  // ---- the screens: scene, what the stage becomes; more, what stands below the text of texts.json

  // A guess is as good as the model's if the model finds it at least half as likely as its own.
  function guessed() {
    const [typed = ""] = Words.split(byId("own-guess").value);
    const token = language.words.includes(typed) ? language.index.get(typed) : null;
    if (token === null) {
      const { says, words } = Words.instead(typed, seen.state.words[seen.state.query - 1], language);
      const unknown = `It does not know “${typed}”. ${says} ${words.join(", ")}`;
      byId("own-note").textContent = typed ? unknown : "Type a word.";
      return;
    }
    const { probabilities, best } = seen.after;
    bet(1, probabilities[token] >= probabilities[best] / 2, { guess: token, covered: false });
  }

  function askWord() {
    const input = element("input", { type: "text", id: "own-guess", autocomplete: "off", autocapitalize: "none",
      spellcheck: "false", "aria-label": "your guess", "aria-describedby": "own-note" });
    const form = element("form", { class: "row" }, input, element("button", { class: "main-button" }, "guess"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      guessed();
    });
    return [form, element("p", { id: "own-note", class: "message", role: "status" })];
  }

  function tellWord({ before: { probabilities, best, truth }, state: { covered, guess } }) {
    if (covered) return askWord();
    const model = `The model's best guess is ${word(best)}, ${fixed(probabilities[best])}; it was ${word(truth)}.`;
    if (won.get(1) === null || guess === null) return [said(model)];
    const how = won.get(1) ? "At least half as likely" : "Less than half as likely";
    return [verdict(1, `${how} as its own best: ${word(guess)} gets ${fixed(probabilities[guess])}. ${model}`)];
  }

  function openArc({ pass, state, words }) {
    const table = Steps.table(pass, state, words, state.divisor ?? Runs.model().divisor);
    const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": "the numbers of each key" };
    return [element("div", region, table)];
  }

  function drawBlock({ state }) {
    const { num_layers } = Runs.model();
    const losses = Levers.through(state, language);
    const layers = Array.from({ length: num_layers }, (_, layer) =>
      [`+ attention ${layer}`, `+ feed-forward ${layer}`]).flat();
    const most = Math.max(...losses);
    return losses.map((loss, i) => View.bar(["word and place", ...layers][i], loss / most, fixed(loss)));
  }

  function askBreak({ state, after, before }) {
    if (state.removed.length === 0) {
      const head = Levers.nameOf(state.layer, state.head);
      const changes = Levers.measure({ ...state, removed: [head] }, language).best !== after.best;
      const answer = (isRight) => () => bet(5, isRight, { removed: [head] });
      return [row(button("it changes", answer(changes)), button("it stays", answer(!changes)))];
    }
    const best = before.best === after.best ? "stays" : `was ${word(before.best)} and is`;
    const text = `${word(after.truth)} ${change(before.chance, after.chance)}; the best guess ${best} ${word(after.best)}.`;
    return won.has(5) ? [verdict(5, text)] : [said(text)];
  }

  const roleAt = (run, { layer, head }) => Runs.get(run).stops.at(-1).heads[layer][head].role;
  const anyRole = (run) => Runs.lanes(run).find(({ heads }) => heads.at(-1).length > 0)?.role;

  // The first head that has a role at the end of a run: {layer, head}, or null.
  function havingRole(run, role) {
    const found = Runs.lanes(run).find((lane) => lane.role === role)?.heads.at(-1)[0];
    return found ? { layer: found.layer, head: found.head } : null;
  }

  // Screen 6 goes on with the training of one's own, if there is one.
  function seedScene(state) {
    const { layer, head } = state;
    const named = state.run === "0" && roleAt("0", state);
    asked = (named ? null : havingRole("0", anyRole("0"))) ?? { layer, head };
    const own = Runs.own();
    return own ? { ...atEnd(), run: own, step: Runs.lastStep(own) }
      : { ...atEnd(), layer: asked.layer, head: asked.head };
  }

  function askSeed({ state, stop, name }) {
    const { layer, head } = asked ?? state;
    const { seed } = Runs.get(state.run);
    const stage = said(`On the stage: seed ${seed}, step ${stop.step}, ${name}. Or train one here:`);
    if (won.has(6)) return [verdict(6, told.get(6)), stage];
    const there = havingRole("1", roleAt("0", { layer, head }));
    const found = there ? `head ${Levers.nameOf(there.layer, there.head)}` : "no head";
    const same = there !== null && there.layer === layer && there.head === head;
    const text = `With seed ${Runs.get("1").seed} it is ${found}.`;
    const answer = (isRight) => () => bet(6, isRight, { ...atEnd(), run: "1", ...there }, text);
    return [row(button("the same head", answer(same)), button("another, or none", answer(!same))), stage];
  }

  function drawScore() {
    const [right, wrong] = [true, false].map((kind) => [...won.values()].filter((is) => is === kind).length);
    const note = element("span", { class: "quiet", role: "status" });
    const address = `${location.href.split("#")[0]}#story=1`;
    const copy = button("copy a link to this story", async () => {
      await navigator.clipboard?.writeText(address).catch(() => {});
      note.textContent = address;
    });
    return [
      element("p", { class: "score" }, `${right} won, ${wrong} lost, ${BETS - right - wrong} open`),
      row(copy, element("a", { href: "#view=break", class: "button" }, "six wagers")),
      note,
    ];
  }

  const SCREENS = [
    { scene: () => ({ ...atEnd(), covered: !won.has(1) }), more: tellWord },
    { scene: () => ({ ...atEnd(), step: 0 }), more: () => [] },
    { scene: atEnd, more: openArc },
    { scene: atEnd, more: drawBlock },
    { scene: atEnd, more: askBreak },
    { scene: seedScene, more: askSeed },
    { scene: () => ({}), more: drawScore },
  ];

  // What the texts may say of the stage.
  function values({ state, stop, words, name, named, after }) {
    const place = asked ?? state;
    return {
      known: language.words.length, step: stop.step, luck: stop.step ? "" : "all weights are random, so any good guess is luck. ",
      truth: language.vocabulary[after.truth], chance: fixed(after.chance), best: language.vocabulary[after.best],
      named: named || "none", query: words[state.query], name, seed: Runs.get("0").seed,
      role: roleAt("0", place) ?? View.NO_ROLE, asked: Levers.nameOf(place.layer, place.head),
    };
  }

  // ---- where the reader is

  const count = SCREENS.length;
  const scene = (screen, state) => ({ covered: false, ...SCREENS[screen - 1].scene(state), story: screen });

  function go(screen) {
    act(scene(screen, seen.state), `screen ${screen}`);
    arrive(screen);
    sections[screen - 1].querySelector("h2").focus({ preventScroll: true });
  }

  const arrive = (screen) => sections[screen - 1].scrollIntoView({ block: "start" });

  function watch() {
    for (const event of ["wheel", "touchmove"]) addEventListener(event, () => { scrolled = true; }, { passive: true });
    addEventListener("keydown", ({ key }) => { scrolled ||= ["PageDown", "PageUp", " "].includes(key); });
    const observer = new IntersectionObserver((entries) => {
      const there = entries.find(({ isIntersecting }) => isIntersecting);
      const screen = there ? sections.indexOf(there.target) + 1 : 0;
      if (scrolled && screen && screen !== seen.state.story) act(scene(screen, seen.state), "story");
    }, { rootMargin: "-60% 0px -39% 0px" });
    sections.forEach((section) => observer.observe(section));
  }

  // The screen that is read follows the stage. The others are drawn with a new sentence and after a bet, and tell
  // nothing while the guesses are covered.
  function draw(now) {
    seen = now;
    const { covered, words, hidden, story } = now.state;
    if (!covered && !won.has(1)) won.set(1, null);
    const all = JSON.stringify([covered, words, hidden, [...won]]);
    const isNew = all !== drawn;
    drawn = all;
    SCREENS.forEach((screen, i) => {
      const current = i + 1 === (story ?? 1);
      sections[i].classList.toggle("current", current);
      if (current || isNew) drawScreen(screen.more, texts[i], sections[i], now, covered && i > 0);
    });
  }

  function drawScreen(more, { says, broken }, section, now, isSecret) {
    const key = JSON.stringify([now.state, now.stop.step, isSecret, [...won]]);
    if (section.dataset.drawn === key) return; // not under the hands of who is typing
    section.dataset.drawn = key;
    const isAsked = now.after && !isSecret;
    const text = isAsked ? View.fill(now.state.removed.length && broken ? broken : says, values(now)) : "";
    section.querySelector(".says").textContent = now.after ? text : "Nothing is hidden: choose a word, and hide it.";
    section.querySelector(".more").replaceChildren(...(isAsked ? more(now) : []));
  }

  function start(app, onAct) {
    [act, language, texts] = [onAct, app.language, app.data.story];
    sections = texts.map(({ title }, i) => {
      const move = (text, to, attributes) => (to >= 1 && to <= count ? button(text, () => go(to), attributes) : "");
      return element("section", { class: "screen", "aria-label": `screen ${i + 1} of ${count}` },
        element("h2", { tabindex: "-1" }, `${i + 1} · ${title}`),
        element("p", { class: "says" }), element("div", { class: "more" }), i === 5 ? byId("grow-card") : "",
        element("p", { class: "row" }, move("back", i), move("next", i + 2, { class: "next" })));
    });
    byId("story").replaceChildren(...sections);
    watch();
  }

  const stepOf = (parts) => Address.whole(parts.get("story"), 1, count);

  return { start, draw, scene, stepOf, arrive };
})();
