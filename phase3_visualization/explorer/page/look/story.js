// The story: seven screens about the sentence beside them, by scrolling, by keyboard, or by address, #story=3.
//
// A screen moves one thing on the stage, and says what is seen there with the numbers on the screen. Three of them ask
// before they show; what a reader bet is kept in this page alone.
"use strict";

const Story = (() => {
  const { byId, button, element, fixed, change } = View;
  const won = new Map(); // screen -> whether its bet was won
  const told = new Map(); // screen -> what was said then
  const BETS = 3;
  let act, language, sections;
  let seen; // what is on the stage
  let scrolled = false; // by the reader: only then does a screen that comes into sight move the stage

  const said = (text) => element("p", {}, text);
  const row = (...parts) => element("div", { class: "row" }, ...parts);
  const word = (token) => `“${language.vocabulary[token]}”`;
  const atEnd = () => ({ run: "0", step: Runs.lastStep("0"), removed: [] });

  function bet(screen, isRight, changes, text = "") {
    if (!won.has(screen)) won.set(screen, isRight); // only the first answer counts
    told.set(screen, text);
    act(changes, "bet");
  }

  function verdict(screen, text) {
    const isRight = won.get(screen);
    return element("p", { class: isRight ? "won" : "lost", role: "status" },
      element("b", {}, isRight ? "Right. " : "No. "), text);
  }

  // ---- the screens: scene, what the stage becomes; says, the text; more, what stands below it

  // A guess is as good as the model's if the model finds it at least half as likely as its own.
  function guessed() {
    const typed = byId("own-guess").value.trim().toLowerCase();
    const token = language.words.includes(typed) ? language.index.get(typed) : null;
    if (token === null) {
      const { says, words } = Words.instead(typed, seen.state.words[seen.state.query - 1], language);
      byId("own-note").textContent = typed ? `It does not know “${typed}”. ${says} ${words.join(", ")}` : "Type a word.";
      return;
    }
    const { probabilities, best } = seen.after;
    bet(1, probabilities[token] >= probabilities[best] / 2, { guess: token, covered: false });
  }

  function askWord() {
    const input = element("input", { type: "text", id: "own-guess", autocomplete: "off", autocapitalize: "none",
      spellcheck: "false", "aria-label": "your guess", "aria-describedby": "own-note" });
    const form = element("form", { class: "row" }, input, element("button", { class: "main-button" }, "guess"),
      button("show me", () => act({ covered: false }, "show")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      guessed();
    });
    return [form, element("p", { id: "own-note", class: "message", role: "status" })];
  }

  function toldWord({ after, state }) {
    const model = `The model's best guess is ${word(after.best)}, ${fixed(after.probabilities[after.best])}; it was ` +
      `${word(after.truth)}.`;
    if (!won.has(1) || state.guess === null) return [said(model)];
    return [verdict(1, `You said ${word(state.guess)}: to the model ${fixed(after.probabilities[state.guess])}. ${model}`)];
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
    const text = `${word(after.truth)} ${change(before.chance, after.chance)}; best guess ${word(before.best)}, now ` +
      `${word(after.best)}.`;
    return won.has(5) ? [verdict(5, text)] : [said(text)];
  }

  const roleAt = (run, { layer, head }) => Runs.get(run).stops.at(-1).heads[layer][head].role;

  const anyRole = (run) => Runs.lanes(run).find(({ heads }) => heads.at(-1).length > 0)?.role;

  // The first head that has a role at the end of a run: {layer, head}, or null.
  function havingRole(run, role) {
    const found = Runs.lanes(run).find((lane) => lane.role === role)?.heads.at(-1)[0];
    return found ? { layer: found.layer, head: found.head } : null;
  }

  function askSeed({ state }) {
    const role = roleAt("0", state);
    if (state.run !== "0") return won.has(6) ? [verdict(6, told.get(6))] : [];
    const there = havingRole("1", role);
    const found = there ? `head ${Levers.nameOf(there.layer, there.head)}` : "no head";
    const same = there !== null && there.layer === state.layer && there.head === state.head;
    const text = `With seed ${Runs.get("1").seed} it is ${found}.`;
    const answer = (isRight) => () => bet(6, isRight, { ...atEnd(), run: "1", ...there }, text);
    return [row(button("the same head", answer(same)), button("another, or none", answer(!same)))];
  }

  function drawScore() {
    const right = [...won.values()].filter(Boolean).length;
    const note = element("span", { class: "quiet", role: "status" });
    const address = `${location.href.split("#")[0]}#story=1`;
    const copy = button("copy a link to this story", async () => {
      await navigator.clipboard?.writeText(address).catch(() => {});
      note.textContent = address;
    });
    return [
      element("p", { class: "score" }, `${right} of ${BETS} bets won`),
      row(copy, element("a", { href: "#view=break", class: "button" }, "six more bets")),
      note,
    ];
  }

  const SCREENS = [
    {
      title: "Which word is hidden?",
      scene: () => ({ ...atEnd(), covered: !won.has(1) }),
      says: () => `One word is hidden: there the model reads <mask>. It was trained to guess hidden words, in a small ` +
        `language of ${language.words.length} words. What would you say?`,
      more: (now) => (now.state.covered ? askWord() : toldWord(now)),
    },
    {
      title: "Drag time",
      scene: () => ({ ...atEnd(), step: 0 }),
      says: ({ stop, named, after }) => `Step ${stop.step}: ${word(after.truth)} has ${fixed(after.chance)}, ` +
        `${named || "no"} ${named > 1 ? "heads have" : "head has"} a name. Drag the slider below the sentence: it is ` +
        "the training of this very model, at a dozen steps; between them it snaps. Arcs rise out of haze. Names come, and some go again; a head has one while it " +
        "looks at the right words, by rule, on sentences that it was not trained on.",
    },
    {
      title: "An arc, opened",
      scene: atEnd,
      says: ({ query }) => `This is attention. ${query} asks with a query vector q, each word has a key k. Their ` +
        "product says how well they fit, softmax makes weights of it, and by these the values v are added up.",
      more: ({ pass, state, words }) => [element("div", { class: "scroll", tabindex: "0", role: "region",
        "aria-label": "the numbers of each key" },
      Steps.table(pass, state, words, state.divisor ?? Runs.model().divisor))],
    },
    {
      title: "Through the block",
      scene: atEnd,
      says: ({ after }) => "The sums of all heads are added to what stood at this place, a feed-forward network adds " +
        `its part, and the next layer goes on. Stop after each part, and ask for the word: what does ${word(after.truth)} ` +
        "still cost, in nats?",
      more: drawBlock,
    },
    {
      title: "Break it",
      scene: atEnd,
      says: ({ name, after, state }) => (state.removed.length ? "It still looks, but nothing of it arrives. Drag the slider: " +
        "from which step on does it matter?" : `Knock out one head, ${name}. Will the best guess, ${word(after.best)}, change?`),
      more: askBreak,
    },
    {
      title: "Another seed",
      scene: (state) => ({ ...atEnd(), ...havingRole("0", roleAt("0", state) ?? anyRole("0")) }),
      says: ({ state, name, stop }) => (state.run === "0" ? `Here it is ${name}. Train once more, from other random ` +
        "numbers: will the same head do this?" : `Seed ${Runs.get(state.run).seed}, step ${stop.step}: on the stage is ` +
        `${name}. Or train one here, in your browser:`),
      more: askSeed,
    },
    {
      title: "Your score",
      scene: () => ({}),
      says: () => "Type a sentence of your own, hide another word, pull a lever: all is computed again, in this page. " +
        "A weight says how much of a value is taken, not why.",
      more: drawScore,
    },
  ];

  // ---- where the reader is

  const count = SCREENS.length;
  const scene = (screen, state) => ({ covered: false, ...SCREENS[screen - 1].scene(state), story: screen });

  function go(screen) {
    act(scene(screen, seen.state), "story");
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

  // A screen is drawn when the stage has changed and it is the one that is read; all of them once.
  function draw(now) {
    const first = !seen;
    seen = now;
    SCREENS.forEach(({ says, more }, i) => {
      const [section, current] = [sections[i], i + 1 === (now.state.story ?? 1)];
      section.classList.toggle("current", current);
      if (!first && !current) return;
      section.querySelector(".says").textContent = now.after ? says(now) : "Nothing is hidden: choose a word, and hide it.";
      const drawn = JSON.stringify([now.key, now.state, [...won]]);
      if (section.dataset.drawn === drawn) return; // not under the hands of who is typing
      section.dataset.drawn = drawn;
      section.querySelector(".more").replaceChildren(...((now.after && more?.(now)) || []));
    });
  }

  function start(app, onAct) {
    [act, language] = [onAct, app.language];
    sections = SCREENS.map(({ title }, i) => {
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
