// Grow a head: the view. It sends the engine its orders, keeps what it tells, and draws the step that is looked at.
//
// The address: #view=grow&seed=3&step=180&without=1.2-120 is the run with seed 3 in which head 1.2 is knocked out after
// 120 steps, seen after 180. It is trained again, not stored.
"use strict";

const Grow = (() => {
  const { byId, on, element, svg, fixed, tokenLabels } = View;
  const [WIDTH, HEIGHT] = [400, 60]; // of the curve
  let app, data, send, heads, recipe;
  let growth, seed, running, finished, at, following, chosen, picked, seconds, since, fast, wanted;
  let [opened, called] = [false, false];

  const length = () => data.shown.words.length;
  const color = (role) => data.colors[role] ?? "var(--quiet)";
  const now = () => seconds + (running ? (performance.now() - since) / 1000 : 0);

  // ---- the run

  // Another run, of so many steps; of none, it has only its first look.
  function restart(newSeed, toggles, steps) {
    [seed, wanted] = [newSeed, toggles];
    [running, finished, seconds, since] = [steps > 0, false, 0, performance.now()];
    [growth, at, following, chosen, picked] = [null, 0, true, "0.0", false];
    byId("grow-seed").value = seed;
    byId("grow-news").textContent = "";
    send({ start: { growth: data, seed, toggles, steps } });
  }

  function train() {
    [running, since] = [true, performance.now()];
    follow();
    send({ run: recipe.steps });
  }

  // The newest look, and each that comes.
  function follow() {
    [following, at] = [true, Math.max(0, (growth?.looks.length ?? 0) - 1)];
    draw();
  }

  function pause() {
    if (running) send({ pause: true });
  }

  // What comes between an order to start again and "ready" is still from the run before.
  function receive(told) {
    if (told.kind === "ready") [growth, fast] = [Growth.create(), told.fast];
    if (!growth) return;
    if (told.kind === "look") seen(told);
    if (told.kind === "toggled") toggled(told);
    if (told.kind === "paused") {
      [seconds, running] = [now(), false];
      finished = told.step === recipe.steps;
    }
    soon();
  }

  function toggled(told) {
    byId("grow-news").textContent = `Step ${told.step}: ${Growth.toggled(growth, told)}.`;
    if (!wanted.some(({ head, step }) => head === told.head && step === told.step)) write();
  }

  function seen(told) {
    const news = Growth.add(growth, told, now());
    if (news.length) byId("grow-news").textContent = `Step ${told.step}: ${news.join("; ")}.`;
    if (following) at = growth.looks.length - 1;
    const [first] = growth.firsts.values();
    if (first && !picked) chosen = first.head; // the eye goes where something happens, unless it is elsewhere
  }

  // ---- the address

  const written = (toggles) => toggles.map(({ head, step }) => `${head}-${step}`).join("_");

  // "1.2-120_0.3-200" -> the toggles that make sense.
  function readToggles(text) {
    const one = new RegExp(`^([0-${recipe.num_layers - 1}]\\.[0-${recipe.num_heads - 1}])-(\\d{1,4})$`);
    const found = (text ?? "").split("_").map((part) => one.exec(part)).filter(Boolean);
    return found.map(([, head, step]) => ({ head, step: Number(step) })).filter(({ step }) => step < recipe.steps);
  }

  function whole(text, high) {
    return /^\d{1,6}$/.test(text ?? "") && Number(text) <= high ? Number(text) : null;
  }

  function write(step = null) {
    const parts = { view: "grow", seed };
    if (step !== null) parts.step = step;
    wanted = growth ? [...growth.toggles] : [];
    if (wanted.length) parts.without = written(wanted);
    app.go(parts);
  }

  // ---- drawing: at most once for each frame

  function soon() {
    if (called) return;
    called = true;
    requestAnimationFrame(() => {
      called = false;
      draw();
    });
  }

  function makeHead(name) {
    const canvas = element("canvas", { "aria-hidden": "true" });
    const badge = element("span", { class: "grow-role" });
    const map = element("button", { type: "button", class: "grow-map" }, badge, canvas);
    const knock = element("button", { type: "button", class: "grow-knock" });
    map.addEventListener("click", () => {
      [chosen, picked] = [name, true];
      draw();
    });
    knock.addEventListener("click", () => {
      follow();
      send({ toggle: name });
    });
    byId("grow-heads").append(element("div", {}, map, knock));
    return { name, canvas, badge, map, knock };
  }

  // The rows of weights of one head, [query] (T).
  function rowsOf({ weights }, name) {
    const [layer, head] = name.split(".").map(Number);
    const start = (layer * recipe.num_heads + head) * length() ** 2;
    return Array.from({ length: length() }, (_, i) =>
      weights.subarray(start + i * length(), start + (i + 1) * length()));
  }

  // A frame around each cell that the grammar ties by this role, in a colour that no weight has.
  function frame(canvas, role) {
    const context = canvas.getContext("2d");
    const cell = canvas.width / length();
    context.strokeStyle = getComputedStyle(canvas).getPropertyValue("--changed");
    context.lineWidth = 2;
    for (const [i, j] of data.shown.tied[role] ?? []) context.strokeRect(j * cell, i * cell, cell - 1, cell - 1);
  }

  function drawHead({ name, canvas, badge, map, knock }, look, isOut) {
    const role = Growth.nameOf(look.names, name);
    const lit = role && !isOut;
    const rows = rowsOf(look, name);
    Maps.drawMap(canvas, rows, rows);
    if (lit) frame(canvas, role);
    map.style.setProperty("--role", lit ? color(role) : "");
    map.classList.toggle("lit", Boolean(lit));
    map.classList.toggle("out", isOut);
    map.setAttribute("aria-pressed", name === chosen);
    const text = isOut ? "knocked out" : role ?? "no role";
    if (badge.dataset.text !== text) {
      badge.dataset.text = text;
      badge.replaceChildren(...(lit ? [element("span", { class: "grow-mark" })] : []), `${text} `);
      map.setAttribute("aria-label", `head ${name}, ${text}`);
    }
    knock.textContent = isOut ? "put back" : "knock out";
    knock.setAttribute("aria-label", `${knock.textContent} head ${name}`);
  }

  function draw() {
    if (!growth?.looks.length) return;
    const look = growth.looks[at];
    const out = Growth.outAt(growth, following ? Infinity : look.step);
    for (const head of heads) drawHead(head, look, out.has(head.name));
    drawLarge(look);
    drawCurve(look);
    drawEvents();
    drawControls(look);
  }

  function drawLarge(look) {
    const role = Growth.nameOf(look.names, chosen);
    byId("grow-chosen").textContent = `Head ${chosen}: ${role ?? "no role yet"}`;
    const rows = rowsOf(look, chosen);
    Maps.drawLarge(byId("grow-large"), data.shown.words, rows, rows, -1, () => {});
  }

  function drawCurve(look) {
    const losses = Growth.smooth(growth);
    const top = 1.05 * Math.max(...losses, 1);
    const x = (step) => (WIDTH * step) / recipe.steps;
    const points = losses.map((loss, i) => `${x(i + 1).toFixed(1)},${(HEIGHT * (1 - loss / top)).toFixed(1)}`);
    const upright = (step, stroke) => svg("line", { x1: x(step), x2: x(step), y1: 0, y2: HEIGHT, stroke });
    const marks = growth.events.map(({ role, step }) => upright(step, color(role)));
    byId("grow-curve").replaceChildren(
      ...marks, svg("polyline", { points: points.join(" ") }), upright(look.step, "var(--accent)"));
    const shown = losses[look.step - 1];
    byId("grow-loss").textContent = !losses.length ? "The loss will be drawn here, step by step."
      : `Step ${look.step}${shown ? `: loss ${fixed(shown)} nats per hidden word` : ""}. The slider goes back in time.`;
  }

  // What happened so far; items that are there already stay as they are.
  function drawEvents() {
    const list = byId("grow-events");
    if (growth.events.length < list.children.length) list.replaceChildren();
    for (const { role, text } of growth.events.slice(list.children.length)) {
      const mark = element("span", { class: "grow-mark" });
      mark.style.setProperty("--role", color(role));
      list.append(element("li", {}, mark, text));
    }
  }

  function drawControls(look) {
    const last = growth.looks.at(-1).step;
    byId("grow-step").value = look.step;
    byId("grow-step").setAttribute("aria-valuetext", `step ${look.step}`);
    byId("grow-train").textContent = running ? "pause" : finished ? "train again" : last ? "go on" : "train";
    const [first] = growth.firsts.values();
    const speed = now() > 0 ? `, ${Math.round(last / now())} steps a second` : "";
    const found = first ? `, first role after ${fixed(first.seconds, 1)} s` : "";
    const slow = fast === false ? " (this browser lacks WebAssembly SIMD, so it takes longer)" : "";
    byId("grow-status").textContent = `step ${last} of ${recipe.steps}${speed}${found}${slow}`;
  }

  // ---- what a reader does

  function press() {
    if (running) pause();
    else if (finished) newSeed(seed, recipe.steps);
    else train();
  }

  function newSeed(value, steps) {
    const next = whole(String(value), 999999);
    if (next === null) {
      byId("grow-seed").value = seed; // what makes no sense does not stay in the field
      return;
    }
    restart(next, [], steps);
    write();
  }

  function scrub(step) {
    at = Growth.lookAt(growth, step);
    following = at === growth.looks.length - 1;
    draw();
  }

  function wire() {
    on("grow-train", "click", press);
    on("grow-seed", "change", () => newSeed(byId("grow-seed").value, 0));
    on("grow-other", "click", () => newSeed((seed + 1) % 1000000, recipe.steps));
    on("grow-step", "input", () => scrub(Number(byId("grow-step").value)));
    on("grow-step", "change", () => write(growth.looks[at].step));
    View.darkGround.addEventListener("change", soon);
  }

  function open() {
    opened = true;
    const scripts = [...document.scripts].filter((script) => script.dataset.name);
    send = Engine.open(new Map(scripts.map((script) => [script.dataset.name, script.textContent])), receive);
    const names = Array.from({ length: recipe.num_layers * recipe.num_heads }, (_, i) =>
      `${Math.floor(i / recipe.num_heads)}.${i % recipe.num_heads}`);
    heads = names.map(makeHead);
    Object.assign(byId("grow-step"), { max: recipe.steps, step: 5 });
    byId("grow-lesson").href = data.lesson;
    byId("grow-sentence").append(...tokenLabels(data.shown.words).map((label) => element("span", {}, label)));
    wire();
  }

  function start(theApp) {
    app = theApp;
    data = app.data.grow;
    ({ recipe } = data);
  }

  // The run that an address names. If it is this one, only the step that is looked at may change.
  function show(parts) {
    const [newSeed, toggles] = [whole(parts.get("seed"), 999999) ?? 0, readToggles(parts.get("without"))];
    const step = whole(parts.get("step"), recipe.steps);
    const same = opened && seed === newSeed && written(wanted) === written(toggles);
    if (!opened) open();
    if (!same) restart(newSeed, toggles, step ?? (toggles.length ? recipe.steps : 0));
    else if (step === null) follow();
    else if (growth?.looks.length) scrub(step);
  }

  function hide() {
    pause();
  }

  return { start, show, hide };
})();
