// Break it, and see: six wagers, one after the other. First a guess, then both models run, then what the record says.
//
// The address holds where a reader is and what was answered, so that a score can be sent:
//   #view=break&wager=end&answers=baacbd
// Each letter is one first answer, a dot a wager not answered. An address may come from anyone: what makes no sense in
// it counts as not answered. A score that somebody sent stays theirs: it invites to bet, and counts for nobody here.
"use strict";

// The score: a line, a picture to save, and an address to send.
const Score = (() => {
  const { element } = View;
  const { button } = Stage;
  const [WIDTH, HEIGHT] = [1200, 630];
  const INK = { ground: "#0f2a3f", text: "#ffffff", quiet: "#b9cbd9", right: "#4cc38a", wrong: "#f2a65a" };
  const KIND = [
    "Attention surprised you each time. That is what bets are for.",
    "Attention surprised you more often than not.",
    "You saw at least half of it coming.",
    "You saw all of it coming.",
  ];

  const kindly = (right, all) => KIND[right === all ? 3 : right * 2 >= all ? 2 : right ? 1 : 0];

  // A hidden verb that looks at its subject.
  function sentence(context, write) {
    const [left, step, line] = [70, 85, 480];
    ["the", "cat", "▢", "on", "the", "mat"].forEach((word, i) => write(word, left + i * step, line, 32, INK.quiet));
    const [from, to] = [left + 2 * step + 14, left + step + 26];
    Object.assign(context, { strokeStyle: INK.wrong, lineWidth: 9, lineCap: "round" });
    context.beginPath();
    context.moveTo(from, line - 34);
    context.quadraticCurveTo((from + to) / 2, line - 110, to, line - 34);
    context.stroke();
  }

  function picture(canvas, right, marks, titles, address) {
    Object.assign(canvas, { width: WIDTH, height: HEIGHT });
    const context = canvas.getContext("2d");
    const write = (text, x, y, size, color, weight = "400") => {
      context.font = `${weight} ${size}px system-ui, sans-serif`;
      context.fillStyle = color;
      context.fillText(text, x, y, WIDTH - x - 60);
    };
    context.fillStyle = INK.ground;
    context.fillRect(0, 0, WIDTH, HEIGHT);
    write("Attention: break it, and see", 70, 105, 44, INK.quiet, "600");
    write(`${right} of ${marks.length}`, 64, 260, 130, INK.text, "700");
    write("wagers won", 70, 315, 36, INK.quiet);
    sentence(context, write);
    marks.forEach((mark, i) => {
      const y = 190 + i * 58;
      const color = mark === null ? INK.quiet : mark ? INK.right : INK.wrong;
      write(mark === null ? "–" : mark ? "✓" : "✗", 640, y, 40, color, "700");
      write(titles[i], 695, y, 30, INK.text);
    });
    write(address, 70, HEIGHT - 50, 26, INK.quiet);
  }

  function save(canvas, name) {
    canvas.toBlob((blob) => {
      const link = element("a", { href: URL.createObjectURL(blob), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }, "image/png");
  }

  // Into the clipboard; where the browser has none (a page from a disk, an old one) the address is at least selected.
  async function copy(field, note) {
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
      note.textContent = "Copied.";
    } catch {
      note.textContent = document.execCommand("copy") ? "Copied." : "Selected: copy it with the keyboard.";
    }
  }

  // Somebody sent a score: how many they won, and nothing about which answers were right.
  function invite(box, right, all, start) {
    box.replaceChildren(
      element("h2", { tabindex: "-1" }, `Somebody won ${right} of ${all}. Your turn.`),
      element("p", {}, "Each wager breaks a small transformer. You bet first, then the models run in this page."),
      start);
  }

  // marks: true, false or null (not answered) for each wager. address: of this score. again: what clears it.
  function draw(box, marks, titles, address, again) {
    const right = marks.filter(Boolean).length;
    const open = marks.filter((mark) => mark === null).length;
    const line = `${right} of ${marks.length}`;
    const canvas = element("canvas", { role: "img", "aria-label": `A card: ${line} wagers won` });
    const onTheWeb = /^https?:/.test(address);
    picture(canvas, right, marks, titles, onTheWeb ? address.split("&")[0] : "");
    const field = element("input", { type: "text", readonly: true, "aria-label": "address of this score" });
    field.value = address;
    const note = element("span", { class: "quiet", role: "status" });
    box.replaceChildren(
      element("h2", { tabindex: "-1" }, line),
      element("p", {}, open ? `Not asked yet: ${open}.` : kindly(right, marks.length)),
      canvas,
      element("p", { class: "row" },
        button("save the picture", () => save(canvas, `break-it-${right}-of-${marks.length}.png`)),
        button("copy the address", () => copy(field, note)), button("start again", again), note),
      element("p", { class: "row" }, field),
      onTheWeb ? "" : element("p", { class: "quiet" },
        "This page lies on a disk. Its address works for others once the page lies on the web."));
  }

  return { draw, invite };
})();

// The view.
const Break = (() => {
  const { byId, element, setUsable } = View;
  const LETTERS = "abcd";
  const LIVE = [
    TwoModels.twoPlaces, TwoModels.future, OneModel.knockout, TwoModels.backwards, OneModel.line, OneModel.bugs,
  ];
  // These show something before the answer, too.
  const FIRST_LOOK = [TwoModels.twoPlaces, TwoModels.backwards, OneModel.line, OneModel.bugs];
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
