// Break it, and see: six wagers, one after the other. First a guess, then both models run, then what the record says.
//
// The address holds where a reader is and what was answered, so that a score can be sent:
//   #view=break&wager=end&answers=baacbd
// Each letter is one first answer, a dot a wager not answered. An address may come from anyone: what makes no sense in
// it counts as not answered. A score that somebody sent stays theirs: it invites to bet, and counts for nobody here.
"use strict";

const Break = (() => {
  const { byId, element, setUsable } = View;
  const LETTERS = "abcd";
  const LIVE = [Symbols.twoPlaces, Future.draw, Knockout.draw, Symbols.backwards, Line.draw, Bugs.draw];
  // These show something before the answer, too.
  const FIRST_LOOK = [Symbols.twoPlaces, Symbols.backwards, Line.draw, Bugs.draw];
  const END = "end";
  const OWN = { bets: "mine" }; // what the browser keeps beside an address of this tab, and sends to nobody

  let app, wagers, tools;
  let state = null; // { at, answers, sent }
  let first = []; // the first answers given in this page; no later address can better them

  // ---- where the reader is

  function read(parts) {
    const asGiven = parts.get("answers") ?? "";
    const given = /^[a-d.]{0,6}$/.test(asGiven) ? asGiven : "";
    const answers = wagers.map(({ choices }, i) => {
      const choice = LETTERS.indexOf(given[i] || ".");
      return choice >= 0 && choice < choices.length ? choice : null;
    });
    const asked = /^[1-6]$/.test(parts.get("wager") ?? "") ? Number(parts.get("wager")) - 1 : 0;
    const at = parts.get("wager") === END ? END : asked;
    const others = answers.some((choice, i) => choice !== null && choice !== first[i]);
    if (at === END && others && history.state?.bets !== OWN.bets) return { at, answers: first, sent: answers };
    first = answers.map((choice, i) => first[i] ?? choice);
    return { at, answers: first, sent: null };
  }

  function parts(at, answers) {
    const letters = answers.map((choice) => (choice === null ? "." : LETTERS[choice])).join("");
    return new URLSearchParams({ view: "break", wager: at === END ? END : at + 1, answers: letters });
  }

  const markOf = (answers) => (i) => (answers[i] === null ? null : answers[i] === wagers[i].right);
  const won = (answers) => wagers.filter((_, i) => markOf(answers)(i)).length;
  const go = (at) => app.go(parts(at, first));

  function again() {
    first = wagers.map(() => null);
    go(0);
  }

  function goOn() {
    go(state.at + 1 < wagers.length ? state.at + 1 : END);
  }

  // ---- drawing

  function drawSteps() {
    const step = (at, text, spoken) => {
      const current = at === state.at ? "step" : null;
      return Stage.button(text, () => go(at), { "aria-current": current, "aria-label": spoken });
    };
    const said = { true: ["✓", "won"], false: ["✗", "lost"], null: ["", "not answered"] };
    const steps = wagers.map(({ title }, i) => {
      const [sign, word] = said[markOf(state.answers)(i)];
      return step(i, `${i + 1}${sign}`, `wager ${i + 1}, ${title}: ${word}`);
    });
    const score = step(END, "score", `your score, ${won(state.answers)} of ${wagers.length}`);
    byId("break-steps").replaceChildren(...steps, score);
  }

  function drawChoices(wager, chosen) {
    const box = byId("break-choices").querySelector("div");
    if (box.dataset.wager !== String(state.at)) {
      box.dataset.wager = state.at;
      box.replaceChildren(...wager.choices.map((text, i) => Stage.button("", () => choose(i), { "data-text": text })));
    }
    [...box.children].forEach((button, i) => {
      const sign = chosen === null ? "" : i === wager.right ? "✓ " : i === chosen ? "✗ " : "";
      button.textContent = sign + button.dataset.text;
      button.className = sign === "✓ " ? "won" : sign ? "lost" : "";
      button.setAttribute("aria-pressed", i === chosen);
      setUsable(button, chosen === null);
    });
  }

  function choose(choice) {
    if (first[state.at] !== null) return; // only the first answer counts
    show(parts(state.at, first.map((old, i) => (i === state.at ? choice : old)))); // no step back leads before it
  }

  function drawVerdict(wager, chosen) {
    const right = chosen === wager.right;
    const said = right ? "Right." : "No.";
    byId("break-verdict").replaceChildren(...(chosen === null ? [] : [
      element("p", { class: right ? "won" : "lost" }, element("b", {}, `${said} `), wager.answer),
      element("p", {}, wager.why),
    ]));
  }

  function drawWager() {
    const wager = wagers[state.at];
    const chosen = state.answers[state.at];
    const live = LIVE[state.at];
    byId("break-name").textContent = `${state.at + 1} · ${wager.title}`;
    byId("break-setup").textContent = wager.setup;
    byId("break-detail").textContent = wager.detail;
    byId("break-question").textContent = wager.question;
    drawChoices(wager, chosen);
    drawVerdict(wager, chosen);
    const [box, answered] = [byId("break-live"), chosen !== null];
    const next = state.at + 1 < wagers.length ? "the next wager" : "your score";
    box.replaceChildren();
    if (answered || FIRST_LOOK.includes(live)) live(box, wager.example, tools, answered);
    else box.append(element("p", { class: "waiting" }, "Choose, and both models run here."));
    if (answered) box.append(Stage.button(next, goOn, { class: "next" }));
    if (answered) byId("break-after").after(box);
    else byId("break-ask").before(box);
    byId("break-lesson").hidden = !answered;
    byId("break-lesson").href = wager.lesson;
    byId("break-next").textContent = answered ? next : `skip to ${next}`;
  }

  function drawScore() {
    const box = byId("break-score");
    if (state.sent) {
      const open = first.indexOf(null);
      const [text, at] = open < 0 ? ["your score", END] : [`to wager ${open + 1}`, open];
      Score.invite(box, won(state.sent), wagers.length, Stage.button(text, () => go(at), { class: "main-button" }));
      return;
    }
    const address = `${location.href.split("#")[0]}#${parts(END, state.answers)}`;
    Score.draw(box, wagers.map((_, i) => markOf(state.answers)(i)), wagers.map(({ title }) => title), address, again);
  }

  function show(asked) {
    const before = state;
    tools ??= unpacked();
    state = read(asked);
    if (!state.sent) history.replaceState(OWN, "", `#${parts(state.at, state.answers)}`);
    drawSteps();
    const ended = state.at === END;
    byId("break-wager").hidden = ended;
    byId("break-score").hidden = !ended;
    if (ended) drawScore();
    else drawWager();
    const moved = before && before.at !== state.at;
    if (moved) (ended ? byId("break-score").querySelector("h2") : byId("break-name")).focus();
  }

  // The small models are unpacked when somebody comes to bet, not before.
  function unpacked() {
    const models = new Map(app.data.wagers.models.map((record) => [record.name, Attention.load(record)]));
    return { app, models, language: app.language };
  }

  function start(page) {
    app = page;
    wagers = app.data.wagers.list;
    first = wagers.map(() => null);
    byId("break-next").addEventListener("click", goOn);
  }

  return { start, show, hide: () => {} };
})();
