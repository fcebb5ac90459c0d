// The score: a line, a picture to save, and an address to send.
"use strict";

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
