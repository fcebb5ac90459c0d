// The levers on the screen: every control shows the state, so that a linked view opens with its levers pulled.
"use strict";

const Controls = (() => {
  const { byId, element, fixed, headName, setUsable } = View;

  function draw(model, state) {
    const d_k = model.d_model / model.num_heads;
    const divisor = Levers.divisorOf(model, state);
    byId("causal").checked = Levers.isCausal(model, state);
    byId("scaled").checked = divisor === model.divisor;
    byId("root").textContent = `√d_k = √${d_k} = ${fixed(model.divisor)}`;
    if (document.activeElement !== byId("divisor")) byId("divisor").value = Number(divisor.toFixed(3));
    byId("divisor-slider").value = Math.log2(divisor);
    byId("divisor-slider").setAttribute("aria-valuetext", fixed(divisor));
    const chosenIsOut = state.removed.includes(`${state.layer}.${state.head}`);
    byId("knock").textContent = chosenIsOut ? "put this head back" : "break it: knock out this head";
    const out = state.removed.map((name) => headName(model, ...name.split(".").map(Number)));
    byId("removed-note").textContent = out.length ? `knocked out: ${out.join("; ")}` : "no head is knocked out";
    setUsable(byId("restore"), out.length > 0);
    drawWords(model, state);
    byId("temperature").value = state.temperature;
    const limit = state.temperature === 0 ? ": the likeliest takes all" : "";
    byId("temperature-note").textContent = fixed(state.temperature, 1) + limit;
    setUsable(byId("reset"), Levers.active(model, state).length > 0);
  }

  function drawWords(model, state) {
    const position = (word) => Levers.position(model, state, word);
    const name = (word) => `${position(word)} ${word < 0 ? "<start>" : state.words[word]}`;
    const hidden = state.hidden.includes(state.query);
    byId("hide").textContent = `${hidden ? "show" : "hide"} “${name(state.query)}”`;
    byId("hide").setAttribute("aria-pressed", hidden);
    byId("swap-word").textContent = name(state.query);
    const others = Levers.orderOf(state).filter((word) => word !== state.query);
    byId("swap-with").replaceChildren(...others.map((word) => element("option", { value: word }, name(word))));
    const next = Levers.wordAt(model, state, position(state.query) + 1) ?? others.at(-1);
    if (next !== undefined) byId("swap-with").value = next;
    setUsable(byId("swap"), state.query >= 0 && others.length > 0);
    setUsable(byId("unswap"), state.order !== null);
  }

  // A field for a number: one outside its limits is said, not used, and put right when the reader leaves the field.
  function numberField(id, low, high, what, apply, current) {
    const field = byId(id);
    const note = element("span", { class: "message", role: "status" });
    field.parentElement.after(note);
    const good = () => field.value !== "" && Number(field.value) >= low && Number(field.value) <= high;
    field.addEventListener("input", () => {
      note.textContent = good() ? "" : `${what} goes from ${low} to ${high}.`;
      field.setAttribute("aria-invalid", !good());
      if (good()) apply(Number(field.value));
    });
    field.addEventListener("blur", () => {
      if (good()) return;
      field.value = current();
      field.setAttribute("aria-invalid", false);
      note.textContent = `${what} goes from ${low} to ${high}: back to ${field.value}.`;
    });
  }

  return { draw, numberField };
})();
