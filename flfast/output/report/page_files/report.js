"use strict";
// A chart shows the text of the mark that the pointer is nearest to. With the focus on it, the left
// and right arrow keys go through a series, up and down to the same place of another series.
for (const chart of document.querySelectorAll("svg.chart")) {
  const marks = [...chart.querySelectorAll(".mark")];
  const tip = chart.parentElement.querySelector(".tip");
  let now = -1;
  const middle = (mark) => {
    const box = mark.getBBox();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };
  let middles = null;
  const show = (place) => {
    if (now >= 0) marks[now].classList.remove("now");
    now = place;
    if (now >= 0) marks[now].classList.add("now");
    tip.textContent = now >= 0 ? marks[now].dataset.tip : "";
  };
  const nearest = (x, y, among) => {
    middles = middles || marks.map(middle);
    let best = -1, least = Infinity;
    for (const place of among) {
      const distance = Math.hypot(middles[place][0] - x, middles[place][1] - y);
      if (distance < least) [best, least] = [place, distance];
    }
    return best;
  };
  const all = marks.map((_, place) => place);
  const series = [...new Set(marks.map((mark) => mark.dataset.s))];
  const other = (step) => {
    const own = series.indexOf(marks[now].dataset.s);
    const wanted = series[(own + step + series.length) % series.length];
    const [x, y] = (middles = middles || marks.map(middle))[now];
    return nearest(x, y, all.filter((place) => marks[place].dataset.s === wanted));
  };
  const along = (step) => {
    const own = all.filter((place) => marks[place].dataset.s === marks[now].dataset.s);
    return own[(own.indexOf(now) + step + own.length) % own.length];
  };
  chart.addEventListener("pointermove", (event) => {
    if (event.target.classList.contains("mark")) return show(marks.indexOf(event.target));
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(chart.getScreenCTM().inverse());
    show(nearest(at.x, at.y, all));
  });
  chart.addEventListener("pointerleave", () => show(-1));
  chart.addEventListener("focus", () => { if (now < 0 && marks.length) show(0); });
  chart.addEventListener("blur", () => show(-1));
  chart.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: () => along(1), ArrowLeft: () => along(-1),
      ArrowDown: () => other(1), ArrowUp: () => other(-1),
      Home: () => 0, End: () => marks.length - 1, Escape: () => -1 };
    const move = moves[event.key];
    if (!move || !marks.length) return;
    event.preventDefault();
    if (now < 0 && event.key !== "Escape") return show(0);
    show(move());
  });
}

// Tables can be copied as CSV and LaTeX, charts be saved as SVG. Without a script there are no buttons.
const csvCell = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
const toCsv = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
const TEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
  "±": "$\\pm$", "<": "$<$", ">": "$>$" };
const tex = (cell) => cell.replace(/[\\~^±<>&%$#_{}]/g, (sign) => TEX[sign] || `\\${sign}`);
const toLatex = (rows) => {
  const [head, ...body] = rows.map((row) => row.map(tex).join(" & ") + " \\\\");
  const columns = "l" + "r".repeat(rows[0].length - 1);
  return [`\\begin{tabular}{${columns}}`, "\\hline", head, "\\hline", ...body, "\\hline",
    "\\end{tabular}", ""].join("\n");
};
const toSvg = (chart) => {
  const copy = chart.cloneNode(true);
  const box = chart.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  const style = document.createElementNS("http://www.w3.org/2000/svg", "style");
  style.textContent = document.querySelector("style").textContent;
  copy.prepend(style);
  return new XMLSerializer().serializeToString(copy);
};
const textRows = (table) =>
  [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
const save = (text, type, name) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};
const copy = (text) => {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy"); // navigator.clipboard is missing in files that are opened
  area.remove();
  return done;
};
const addButton = (place, label, what, act) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.setAttribute("aria-label", `${label}: ${what}`);
  button.addEventListener("click", () => {
    const done = act() !== false;
    button.textContent = done ? "Done" : "Not possible here";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
  place.append(button);
};
for (const table of document.querySelectorAll("table")) {
  const bar = document.createElement("p");
  bar.className = "buttons";
  table.parentElement.after(bar);
  const what = table.caption.textContent;
  addButton(bar, "Copy as CSV", what, () => copy(toCsv(textRows(table))));
  addButton(bar, "Copy as LaTeX", what, () => copy(toLatex(textRows(table))));
}
for (const chart of document.querySelectorAll("svg.chart")) {
  const bar = document.createElement("p");
  bar.className = "buttons";
  chart.after(bar);
  const title = chart.closest("figure").querySelector("figcaption").textContent.trim();
  const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  addButton(bar, "Save as SVG", title, () => save(toSvg(chart), "image/svg+xml", `${name}.svg`));
}
