// Runs in the page that prints figures. Behind each SVG it writes, as a comment, where the browser has drawn what is in it:
// lengths are pixels of the page from its upper left corner. `checks.py` reads it.
(() => {
  const draw = kaleido_scopes.plotly
  kaleido_scopes.plotly = (spec, ...rest) => {
    const traces = spec.data.data // drawing takes them away
    return draw(spec, ...rest).then((answer) => {
      if (answer.code === 0 && answer.format === 'svg') {
        // two hyphens would end the comment
        answer.result += `\x3c!--measured ${JSON.stringify(measured(answer.result, traces)).replace(/--/g, '-\\u002d')}-->`
      }
      return answer
    })
  }

  const seen = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true })
  const rounded = (numbers) => numbers.map((number) => Math.round(number * 100) / 100)

  function measured(text, traces) {
    const holder = document.body.appendChild(document.createElement('div'))
    holder.style.cssText = 'position: absolute; left: 0; top: 0'
    // pictures have their place without being decoded a second time
    holder.innerHTML = text.replace(/(?:xlink:)?href="data:[^"]*"/g, '')
    const svg = holder.querySelector('svg')
    const toPage = svg.getScreenCTM().inverse()
    const matrix = (element) => toPage.multiply(element.getScreenCTM())
    const found = { words: words(svg, matrix), legends: legends(svg, matrix), panels: panels(svg, matrix, traces) }
    found.missing = missing(svg)
    holder.remove()
    return found
  }

  function corners(box, at) {
    const right = box.x + box.width, lower = box.y + box.height
    const ends = [[box.x, box.y], [right, box.y], [right, lower], [box.x, lower]]
    return ends.flatMap(([x, y]) => [at.a * x + at.c * y + at.e, at.b * x + at.d * y + at.f])
  }

  const around = (points) => {
    const x = points.filter((_, place) => place % 2 === 0), y = points.filter((_, place) => place % 2)
    return rounded([Math.min(...x), Math.min(...y), Math.max(...x), Math.max(...y)])
  }

  function clip(element, matrix) {
    // the box that hides what lies beyond it, as of a panel or a legend that scrolls
    const clipped = element.closest('[clip-path]')
    const name = clipped && /#([^"')]+)/.exec(clipped.getAttribute('clip-path'))
    const rect = name && document.getElementById(name[1])?.querySelector('rect')
    return rect ? around(corners(size(rect), matrix(clipped))) : null
  }

  const size = (rect) => ({
    x: rect.x.baseVal.value, y: rect.y.baseVal.value, width: rect.width.baseVal.value, height: rect.height.baseVal.value,
  })

  function words(svg, matrix) {
    const pen = document.createElement('canvas').getContext('2d')
    const found = []
    for (const text of svg.querySelectorAll('text')) {
      if (!text.textContent.trim() || !seen(text)) continue
      const at = matrix(text)
      const lines = text.querySelectorAll('tspan.line')
      for (const line of lines.length ? lines : [text]) {
        const said = line.textContent.replace(/\u200b/g, '').trim()
        const style = getComputedStyle(line)
        if (!said || style.fillOpacity === '0') continue
        const start = line.getStartPositionOfChar(0)
        pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`
        const ink = pen.measureText(said)
        const box = {
          x: start.x, y: start.y - ink.actualBoundingBoxAscent,
          width: line.getComputedTextLength(), height: ink.actualBoundingBoxAscent + ink.actualBoundingBoxDescent,
        }
        found.push({
          text: said, size: Math.round(parseFloat(style.fontSize) * Math.hypot(at.a, at.b) * 100) / 100,
          corners: rounded(corners(box, at)), clip: clip(text, matrix),
        })
      }
    }
    return found
  }

  function missing(svg) {
    // characters that no font has: all are drawn as one that no alphabet has
    const pen = new OffscreenCanvas(40, 40).getContext('2d', { willReadFrequently: true })
    const drawn = (character) => {
      pen.clearRect(0, 0, 40, 40)
      pen.fillText(character, 4, 30)
      return pen.getImageData(0, 0, 40, 40).data.join()
    }
    const found = new Set()
    for (const text of svg.querySelectorAll('text')) {
      const odd = [...text.textContent.replace(/[\0-\u02ff\s]/g, '')]
      if (!odd.length || !seen(text)) continue
      pen.font = `24px ${getComputedStyle(text).fontFamily}`
      const box = drawn('\u0378')
      odd.filter((character) => drawn(character) === box).forEach((character) => found.add(character))
    }
    return [...found].join('')
  }

  const legends = (svg, matrix) =>
    [...svg.querySelectorAll('.infolayer > g[class^="legend"] > rect.bg')]
      .filter(seen).map((rect) => around(corners(size(rect), matrix(rect))))

  function panels(svg, matrix, traces) {
    // what WebGL draws is one picture for all panels
    const held = (values) => values?.length || values?.bdata
    const byWebGL = new Set(traces.filter(({ type, x, y }) => /gl$/.test(type) && (held(x) || held(y)))
      .map(({ xaxis, yaxis }) => (xaxis || 'x') + (yaxis || 'y')))
    const images = [...svg.querySelectorAll('.imagelayer image')].map((image) => around(corners(image.getBBox(), matrix(image))))
    return [...svg.querySelectorAll('.cartesianlayer > g.subplot')].map((subplot) => {
      const drawn = subplot.querySelector('.overplot > g')
      const room = [...svg.querySelectorAll('clipPath.plotclip')]
        .find((one) => new RegExp(`^clip[0-9a-f]{6}${drawn.classList[0]}plot$`).test(one.id)).querySelector('rect')
      const box = around(corners(size(room), matrix(drawn)))
      const within = ([left, upper, right, lower]) =>
        left + right > 2 * box[0] && left + right < 2 * box[2] && upper + lower > 2 * box[1] && upper + lower < 2 * box[3]
      const marks = [...subplot.querySelectorAll('.overplot path, .overplot image, .overplot text')]
      const labels = (layer) =>
        [...subplot.querySelectorAll(`g[class^="${layer}axislayer"] > g[class$="tick"] text`)]
          .filter(seen).map((text) => text.textContent)
      return {
        box, x: labels('x'), y: labels('y'),
        drawn: marks.filter((mark) => seen(mark) && mark.getBBox().width + mark.getBBox().height > 0).length
          + images.filter(within).length + byWebGL.has(drawn.classList[0]),
        beyond: beyond(drawn.parentNode, room.width.baseVal.value, room.height.baseVal.value),
      }
    })
  }

  function beyond(drawn, width, height) {
    // how many marks of each kind there are, and how many of them leave the panel
    // where arrows at the end of an axis say so, lines and bands may, and a point each; of all symbols arrows begin at their tip
    const arrows = [...drawn.querySelectorAll('path.point')].filter((point) => /^M0,0(?![.\d])/.test(point.getAttribute('d')))
    const kinds = { points: 'path.point', lines: '.lines > path.js-line', intervals: '.errorbars path', bands: '.fills path' }
    return Object.fromEntries(Object.entries(kinds).map(([kind, choice]) => {
      const all = [...drawn.querySelectorAll(choice)]
      const out = all.filter((mark) => {
        if (arrows.length && (kind === 'lines' || kind === 'bands')) return false
        if (!seen(mark)) return kind === 'points' // plotly hides those that it may not clip
        let { x, y, width: wide, height: tall } = mark.getBBox()
        if (kind === 'points') {
          const { e, f } = mark.transform.baseVal.consolidate().matrix
          ;[x, y, wide, tall] = [e, f, 0, 0]
        }
        return x < -1.5 || y < -1.5 || x + wide > width + 1.5 || y + tall > height + 1.5
      })
      const arrowed = kind === 'points' ? arrows.length : 0
      return [kind, [Math.max(0, out.length - arrowed), all.length]]
    }))
  }
})()
