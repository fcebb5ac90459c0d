// Break it, and see: six wagers, one after the other. First a guess, then the models run, then what the record says.
//
// The address holds where a reader is and what was answered, so that a score can be sent:
//   #view=break&wager=end&answers=baacbd
// Each letter is one first answer, a dot a wager not answered. An address may come from anyone: what makes no sense in
// it counts as not answered. A score that somebody sent stays theirs: it invites to bet, and counts for nobody here.
"use strict";

const Break = (() => {
  const { button, fill, byId, element, remember, setUsable } = View;
  const LETTERS = "abcd";
  const END = "end";
  const SIGN = { null: "", true: "✓", false: "✗" }; // of a wager not answered, won, lost
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
    const number = /^[1-6]$/.test(parts.get("wager") ?? "") ? Number(parts.get("wager")) - 1 : 0;
    const at = parts.get("wager") === END ? END : number;
    const others = answers.some((choice, i) => choice !== null && choice !== first[i]);
    if (at === END && others && history.state?.bets !== OWN.bets) return { at, answers: first, sent: answers };
    first = answers.map((choice, i) => first[i] ?? choice);
    return { at, answers: first, sent: null };
  }

  function parts(at, answers) {
    const letters = answers.map((choice) => (choice === null ? "." : LETTERS[choice])).join("");
    return new URLSearchParams({ view: "break", wager: at === END ? END : at + 1, answers: letters });
  }

  // For each wager true, false, or null: not answered.
  const marksOf = (answers) => wagers.map(({ right }, i) => (answers[i] === null ? null : answers[i] === right));
  const won = (answers) => marksOf(answers).filter(Boolean).length;
  const go = (at) => app.go(parts(at, first));
  const following = () => (state.at + 1 < wagers.length ? state.at + 1 : END);

  function again() {
    first = wagers.map(() => null);
    go(0);
  }

  // ---- drawing

  function drawSteps() {
    const step = (at, text, spoken) => button(text, () => go(at),
      { "aria-current": at === state.at ? "step" : null, "aria-label": spoken });
    const meanings = { null: "not answered", true: "won", false: "lost" };
    const steps = marksOf(state.answers).map((mark, i) =>
      step(i, `${i + 1}${SIGN[mark]}`, `bet ${i + 1}, ${wagers[i].title}: ${meanings[mark]}`));
    const score = step(END, "score", `your score, ${won(state.answers)} of ${wagers.length}`);
    byId("break-steps").replaceChildren(...steps, score);
  }

  function drawChoices(wager, chosen) {
    const box = byId("break-choices").querySelector("div");
    if (box.dataset.wager !== wager.name) { // buttons stay while one is pressed: it keeps the focus
      box.dataset.wager = wager.name;
      box.replaceChildren(...wager.choices.map((_, i) => button("", () => choose(i))));
    }
    [...box.children].forEach((choice, i) => {
      const kind = chosen === null ? "" : i === wager.right ? "won" : i === chosen ? "lost" : "";
      choice.textContent = { won: "✓ ", lost: "✗ ", "": "" }[kind] + wager.choices[i];
      choice.className = kind;
      choice.setAttribute("aria-pressed", i === chosen);
      setUsable(choice, chosen === null);
    });
  }

  function choose(choice) {
    if (first[state.at] !== null) return; // only the first answer counts
    show(parts(state.at, first.map((old, i) => (i === state.at ? choice : old)))); // no step back leads before it
    const verdict = byId("break-verdict"); // below the way to the picture, where there is one
    for (const part of [verdict.lastChild, verdict.firstChild]) part.scrollIntoView({ block: "nearest" });
  }

  // In beats: the number, what it means, its range in other trainings, why; on a phone also the way to the live picture.
  function verdict(wager, chosen) {
    const [kind, judgement] = chosen === wager.right ? ["won", "Right. "] : ["lost", "No. "];
    return [
      element("p", { class: `answer ${kind}` }, element("b", {}, judgement), wager.answer),
      element("p", {}, wager.means),
      ...(wager.interval ? [Stage.decision(wager, chosen)] : []),
      element("p", {}, wager.why),
      button("see it happen ↓", () => byId("break-live").scrollIntoView(), { class: "see" })];
  }

  function drawWager() {
    const wager = wagers[state.at];
    const chosen = state.answers[state.at];
    const answered = chosen !== null;
    byId("break-name").textContent = `${state.at + 1} · ${wager.title}`;
    for (const part of ["setup", "detail", "question"]) byId(`break-${part}`).textContent = wager[part];
    drawChoices(wager, chosen);
    byId("break-verdict").replaceChildren(...(answered ? verdict(wager, chosen) : []));
    const next = following() === END ? "your score" : "the next bet";
    const say = (name, values = {}) => fill(wager.says[name], values);
    const box = byId("break-live");
    box.replaceChildren(...Live[wager.name]({ wager, example: wager.example, say, answered, ...tools }));
    if (answered) box.append(button(next, () => go(following()), { class: "next" }));
    if (answered) byId("break-after").after(box);
    else byId("break-ask").before(box);
    byId("break-lesson").hidden = !answered;
    byId("break-lesson").href = wager.lesson;
    byId("break-next").textContent = answered ? next : `skip to ${next}`;
  }

  // Somebody sent a score: how many they won, and nothing about which answers were right.
  function invitation() {
    const open = first.indexOf(null);
    const [text, at] = open < 0 ? ["your score", END] : [`to bet ${open + 1}`, open];
    return [
      element("h2", { tabindex: "-1" }, `Somebody won ${won(state.sent)} of ${wagers.length}. Your turn.`),
      element("p", {}, "Each bet breaks a small transformer. You answer first, then the models run in this page."),
      button(text, () => go(at), { class: "main-button" })];
  }

  function score() {
    const marks = marksOf(state.answers);
    const [right, open] = [true, null].map((kind) => marks.filter((mark) => mark === kind).length);
    const bets = wagers.map(({ title }, i) =>
      element("li", { class: { true: "won", false: "lost" }[marks[i]] },
        button(title, () => go(i), { class: "link" }), " ", element("b", {}, SIGN[marks[i]])));
    return [
      element("h2", { tabindex: "-1" }, `${right} of ${marks.length}`),
      element("p", {}, open ? `Not asked yet: ${open}.` : right === marks.length ? "You saw all of it coming."
        : `Attention surprised you in ${marks.length - right} of ${marks.length}. That is what bets are for.`),
      element("ol", {}, ...bets),
      ...View.share("send your score"),
      button("start again", again)];
  }

  function show(asked) {
    const before = state?.at;
    tools ??= unpacked();
    state = read(asked);
    if (!state.sent) remember("replaceState", parts(state.at, state.answers), OWN);
    drawSteps();
    const ended = state.at === END;
    byId("break-wager").hidden = ended;
    byId("break-score").hidden = !ended;
    if (ended) byId("break-score").replaceChildren(...(state.sent ? invitation() : score()));
    else drawWager();
    if (before === undefined || before === state.at) return;
    byId("break-exactly").open = false;
    (ended ? byId("break-score").querySelector("h2") : byId("break-name")).focus({ preventScroll: true });
    scrollTo(0, 0); // a new bet begins at its tabs and its title
  }

  // The small models are unpacked when somebody comes to bet, not before.
  function unpacked() {
    const small = app.data.wagers.models.map((record) => [record.name, Network.load(record)]);
    const models = new Map([...small, ["both sides", app.modelOfLessons()]]);
    const jobOf = (head) => View.jobOf(View.roleOf(models.get("both sides"), ...head));
    const called = (head) => `${View.headCalled(head.join("."))}: ${jobOf(head)}`;
    return { models, called, language: app.language };
  }

  function start(page) {
    app = page;
    wagers = app.data.wagers.list;
    first = wagers.map(() => null);
    byId("break-next").addEventListener("click", () => go(following()));
  }

  return { start, show };
})();
