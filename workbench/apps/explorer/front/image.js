// An input's own pixels, and its patches over them.

/** The image of an input as a canvas; grey, so that no colour of its own is taken for attention. Null for a text. */
export function inputImage(one, grey) {
  const { image: size, pixels, cells, grid } = one;
  if (!size) return null;
  const [height, width] = size;
  const cellOf = (i) => Math.floor((Math.floor(i / width) * grid[0]) / height) * grid[1] + Math.floor(((i % width) * grid[1]) / width);
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const [red, green, blue] = [pixels[i * 3], pixels[i * 3 + 1], pixels[i * 3 + 2]];
    const light = 48 + 0.74 * (0.2126 * red + 0.7152 * green + 0.0722 * blue); // blue is seen on neither black nor white
    const alpha = cells && patchesOf(one)[cellOf(i)] === null ? 0 : 255; // beside the overview of tiles
    image.data.set(grey ? [light, light, light, alpha] : [red, green, blue, alpha], i * 4);
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

/** Words where they stand, in the colours that they have in the page. */
export function drawChips(pen, chips, ink) {
  for (const [, chip] of chips) {
    const { offsetLeft: x, offsetTop: y, offsetWidth: width, offsetHeight: height } = chip;
    const { backgroundColor, color } = chip.style;
    pen.fillStyle = backgroundColor || "none";
    pen.fillRect(x, y, width, height);
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    if (chip.classList.contains("aw-asked")) pen.strokeRect(x, y, width, height);
    const size = parseFloat(chip.closest(".aw-text")?.style.fontSize) || 14;
    Object.assign(pen, { fillStyle: color || ink, font: `${size * 0.96}px`, textAlign: "center", textBaseline: "middle" }); // letters of the file may be wider
    pen.fillText(chip.textContent, x + width / 2, y + height / 2);
  }
}

const RIM = [["#ffffff", 4], ["#111418", 2]]; // dark on light: seen on any colour

const inOrder = new WeakMap();

/** The tokens that are patches, row by row: by their cells (null where one is empty), or as their labels ("row,column") place them. */
export function patchesOf(one) {
  if (one.cells && !inOrder.has(one)) {
    const tokens = new Array(one.grid[0] * one.grid[1]).fill(null);
    one.cells.forEach((cell, token) => Number.isFinite(cell) && (tokens[cell] = token));
    inOrder.set(one, tokens);
  }
  if (!inOrder.has(one)) {
    const { kinds, labels, grid } = one;
    const places = new Map([...kinds.keys()].filter((token) => kinds[token] === "patch").map((token, i) => {
      const [row, column] = labels[token].split(",").map(Number);
      return [token, Number.isInteger(row) && Number.isInteger(column) && grid ? row * grid[1] + column : i];
    }));
    inOrder.set(one, [...places.keys()].sort((a, b) => places.get(a) - places.get(b)));
  }
  return inOrder.get(one);
}

/** Whether an image stands among words, which look at its patches. */
export function pictured({ grid, kinds }) {
  return Boolean(grid) && kinds.includes("word");
}

/** The patch that a pointer is on, or null. */
export function patchAt(event, canvas, one) {
  const box = canvas.getBoundingClientRect();
  const [rows, columns] = one.grid;
  const [x, y] = [Math.floor(((event.clientX - box.left) / box.width) * columns), Math.floor(((event.clientY - box.top) / box.height) * rows)];
  return x >= 0 && x < columns && y >= 0 && y < rows ? patchesOf(one)[y * columns + x] : null;
}

/** Draw patches over their image, each in the colour that it has, and a rim around those in question. */
export function drawPatches(pen, one, image, width, height, asked, colour) {
  const [rows, columns] = one.grid;
  const patches = patchesOf(one);
  pen.imageSmoothingEnabled = (one.image ?? one.grid)[1] > 64;
  if (image) pen.drawImage(image, 0, 0, width, height);
  const edges = (i) => [[i % columns, width / columns], [Math.floor(i / columns), height / rows]].flatMap(([place, side]) => [Math.round(place * side), Math.round((place + 1) * side)]);
  patches.forEach((token, i) => {
    const fill = token !== null && colour(token);
    if (!fill) return;
    const [left, right, top, bottom] = edges(i);
    pen.fillStyle = fill;
    pen.fillRect(left, top, right - left, bottom - top);
  });
  for (const i of asked.map((token) => patches.indexOf(token)).filter((place) => place >= 0)) {
    const [left, right, top, bottom] = edges(i);
    for (const [ink, thick] of RIM) {
      pen.strokeStyle = ink;
      pen.lineWidth = thick;
      pen.strokeRect(left + 1.5, top + 1.5, right - left - 3, bottom - top - 3);
    }
  }
}
