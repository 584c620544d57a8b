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
