// Break it, and see: six wagers, one after the other. First a guess, then both models run, then what the record says.
//
// The address holds where a reader is and what was answered, so that a score can be sent:
//   #view=break&wager=end&answers=baacbd
// Each letter is one first answer, a dot a wager not answered. An address may come from anyone: what makes no sense in
// it counts as not answered.
"use strict";

const Break = (() => {
  const { byId, element, setUsable } = View;
  const LETTERS = "abcd";
  const LIVE = [Symbols.twoPlaces, Future.draw, Knockout.draw, Symbols.backwards, Line.draw, Bugs.draw];
  const FIRST_LOOK = [Line.draw, Bugs.draw]; // these show something before the answer, too
  const END = "end";

  let app, wagers, tools, state;

  // ---- where the reader is

  function read(parts) {
    const asGiven = parts.get("answers") ?? "";
    const given = /^[a-d.]{0,6}$/.test(asGiven) ? asGiven : "";
    const answers = wagers.map(({ choices }, i) => {
      const choice = LETTERS.indexOf(given[i] || ".");
      return choice >= 0 && choice < choices.length ? choice : null;
    });
    const asked = /^[1-6]$/.test(parts.get("wager") ?? "") ? Number(parts.get("wager")) - 1 : 0;
    return { at: parts.get("wager") === END ? END : asked, answers };
  }

  function parts(at, answers) {
    const letters = answers.map((choice) => (choice === null ? "." : LETTERS[choice])).join("");
    return new URLSearchParams({ view: "break", wager: at === END ? END : at + 1, answers: letters });
  }

  const mark = (i) => (state.answers[i] === null ? null : state.answers[i] === wagers[i].right);
  const go = (at, answers = state.answers) => app.go(parts(at, answers));

  // ---- drawing

  function drawSteps() {
    const step = (at, text, spoken) => {
      const current = at === state.at ? "step" : null;
      return Stage.button(text, () => go(at), { "aria-current": current, "aria-label": spoken });
    };
    const said = { true: ["✓", "won"], false: ["✗", "lost"], null: ["", "not answered"] };
    const steps = wagers.map(({ title }, i) => {
      const [sign, word] = said[mark(i)];
      return step(i, `${i + 1}${sign}`, `wager ${i + 1}, ${title}: ${word}`);
    });
    const won = wagers.filter((_, i) => mark(i)).length;
    byId("break-steps").replaceChildren(...steps, step(END, "score", `your score, ${won} of ${wagers.length}`));
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
    if (state.answers[state.at] !== null) return; // only the first answer counts
    go(state.at, state.answers.map((old, i) => (i === state.at ? choice : old)));
  }

  function drawVerdict(wager, chosen) {
    const won = chosen === wager.right;
    const said = won ? "Right." : "Not so, and that makes it worth knowing.";
    byId("break-verdict").replaceChildren(...(chosen === null ? [] : [
      element("p", { class: won ? "won" : "lost" }, element("b", {}, `${said} `), wager.answer),
      element("p", {}, wager.why),
    ]));
  }

  function drawWager() {
    const wager = wagers[state.at];
    const chosen = state.answers[state.at];
    const live = LIVE[state.at];
    byId("break-name").textContent = `${state.at + 1} · ${wager.title}`;
    byId("break-setup").textContent = wager.setup;
    byId("break-question").textContent = wager.question;
    drawChoices(wager, chosen);
    drawVerdict(wager, chosen);
    const [box, answered] = [byId("break-live"), chosen !== null];
    box.replaceChildren();
    if (answered || FIRST_LOOK.includes(live)) live(box, wager.example, tools, answered);
    else box.append(element("p", { class: "waiting" }, "Choose, and both models run here."));
    if (answered) byId("break-ask").after(box);
    else byId("break-ask").before(box);
    byId("break-lesson").hidden = !answered;
    byId("break-lesson").href = wager.lesson;
    const next = state.at + 1 < wagers.length ? "the next wager" : "your score";
    byId("break-next").textContent = answered ? next : `skip to ${next}`;
  }

  function show(asked) {
    const before = state;
    tools ??= unpacked();
    state = read(asked);
    drawSteps();
    const ended = state.at === END;
    byId("break-wager").hidden = ended;
    byId("break-score").hidden = !ended;
    if (ended) {
      const address = `${location.href.split("#")[0]}#${parts(END, state.answers)}`;
      Score.draw(byId("break-score"), wagers.map((_, i) => mark(i)), wagers.map(({ title }) => title), address,
        () => go(0, wagers.map(() => null)));
    } else drawWager();
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
    byId("break-next").addEventListener("click", () => go(state.at + 1 < wagers.length ? state.at + 1 : END));
  }

  return { start, show, hide: () => {} };
})();
