//! A layered layout: every vertex below all it depends on, edges routed between the boxes.
//!
//! The phases are those of Sugiyama's method, each in its simplest form, which suits graphs of models: long and narrow.
//! 1. *Layers*: the longest path from a vertex without predecessors.
//! 2. *Bends*: an edge over several layers gets a narrow vertex in each, so that boxes make way for it.
//! 3. *Order*: within its layer a vertex goes where the mean of its neighbours is, down and up a few times.
//! 4. *Places*: layers are packed from left to right around the mean of their neighbours.

/// Vertical distance of layers in pixels.
pub(super) const LAYER_HEIGHT: f64 = 56.0;
/// Least space between boxes of a layer.
const GAP: f64 = 16.0;
/// Width kept free for an edge that passes.
const BEND_WIDTH: f64 = 8.0;
/// Times the order is improved; after a few it no longer changes much.
const SWEEPS: usize = 8;

/// Where everything is.
#[derive(Debug)]
pub(super) struct Layout {
    /// Centre of every vertex.
    pub(super) centers: Vec<(f64, f64)>,
    /// Per edge the centres of its bends, downwards.
    pub(super) bends: Vec<Vec<(f64, f64)>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Vertices and bends together, as the phases see them.
struct Work {
    /// Vertices of each layer, in order.
    layers: Vec<Vec<usize>>,
    widths: Vec<f64>,
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
    /// Per edge its bends.
    bends: Vec<Vec<usize>>,
    x: Vec<f64>,
}

impl Layout {
    /// Lays out a graph without cycles whose edges go from earlier to later vertices.
    pub(super) fn new(edges: &[(usize, usize)], vertices: usize, widths: &[f64]) -> Layout {
        let layer_of = layers(edges, vertices);
        let mut work = Work::new(edges, &layer_of, widths);
        work.order();
        work.place();
        work.finish(vertices)
    }
}

fn layers(edges: &[(usize, usize)], vertices: usize) -> Vec<usize> {
    let mut layer = vec![0; vertices];
    let mut sorted = edges.to_vec();
    // In the order of their targets, so that the layer of a source is final when it is used.
    sorted.sort_unstable_by_key(|(from, to)| (*to, *from));
    for (from, to) in sorted {
        layer[to] = layer[to].max(layer[from] + 1);
    }
    layer
}

impl Work {
    fn new(edges: &[(usize, usize)], layer_of: &[usize], widths: &[f64]) -> Work {
        let count = layer_of.iter().max().map_or(0, |last| last + 1);
        let mut work = Work {
            layers: vec![Vec::new(); count],
            widths: widths.to_vec(),
            above: vec![Vec::new(); widths.len()],
            below: vec![Vec::new(); widths.len()],
            bends: Vec::with_capacity(edges.len()),
            x: Vec::new(),
        };
        for (vertex, &layer) in layer_of.iter().enumerate() {
            work.layers[layer].push(vertex);
        }
        for &(from, to) in edges {
            let bends: Vec<usize> = (layer_of[from] + 1..layer_of[to]).map(|layer| work.bend(layer)).collect();
            let path: Vec<usize> = [from].into_iter().chain(bends.iter().copied()).chain([to]).collect();
            for pair in path.windows(2) {
                work.below[pair[0]].push(pair[1]);
                work.above[pair[1]].push(pair[0]);
            }
            work.bends.push(bends);
        }
        work.x = vec![0.0; work.widths.len()];
        work
    }

    fn bend(&mut self, layer: usize) -> usize {
        let vertex = self.widths.len();
        self.widths.push(BEND_WIDTH);
        self.above.push(Vec::new());
        self.below.push(Vec::new());
        self.layers[layer].push(vertex);
        vertex
    }

    fn order(&mut self) {
        for sweep in 0..SWEEPS {
            self.number();
            for step in 0..self.layers.len() {
                let down = sweep % 2 == 0;
                let layer = if down { step } else { self.layers.len() - 1 - step };
                let neighbours = if down { &self.above } else { &self.below };
                let x = &self.x;
                let key = |vertex: &usize| mean(&neighbours[*vertex], x).unwrap_or(x[*vertex]);
                self.layers[layer].sort_by(|a, b| key(a).total_cmp(&key(b)));
                for (position, &vertex) in self.layers[layer].iter().enumerate() {
                    self.x[vertex] = position as f64;
                }
            }
        }
    }

    /// Positions within layers as coordinates.
    fn number(&mut self) {
        for layer in &self.layers {
            for (position, &vertex) in layer.iter().enumerate() {
                self.x[vertex] = position as f64;
            }
        }
    }

    fn place(&mut self) {
        self.x.fill(0.0);
        for sweep in 0..SWEEPS {
            for step in 0..self.layers.len() {
                let layer = if sweep % 2 == 0 { step } else { self.layers.len() - 1 - step };
                self.place_layer(layer);
            }
        }
    }

    /// Packs a layer, then moves it as a whole to where its vertices want to be.
    fn place_layer(&mut self, layer: usize) {
        let vertices = std::mem::take(&mut self.layers[layer]);
        let wanted = |work: &Work, vertex: usize| {
            let neighbours: Vec<usize> = work.above[vertex].iter().chain(&work.below[vertex]).copied().collect();
            mean(&neighbours, &work.x).unwrap_or(work.x[vertex])
        };
        let wishes: Vec<f64> = vertices.iter().map(|&vertex| wanted(self, vertex)).collect();
        let mut places: Vec<f64> = Vec::with_capacity(vertices.len());
        for (index, &vertex) in vertices.iter().enumerate() {
            let left = index.checked_sub(1).map(|i| places[i] + (self.widths[vertices[i]] + self.widths[vertex]) / 2.0 + GAP);
            places.push(left.map_or(wishes[index], |left| left.max(wishes[index])));
        }
        let count = vertices.len().max(1) as f64;
        let shift = wishes.iter().zip(&places).map(|(wish, place)| wish - place).sum::<f64>() / count;
        for (&vertex, place) in vertices.iter().zip(places) {
            self.x[vertex] = place + shift;
        }
        self.layers[layer] = vertices;
    }

    fn finish(self, vertices: usize) -> Layout {
        let mut y = vec![0.0; self.x.len()];
        for (layer, members) in self.layers.iter().enumerate() {
            for &vertex in members {
                y[vertex] = (layer as f64 + 0.5) * LAYER_HEIGHT;
            }
        }
        let left = self.x.iter().zip(&self.widths).map(|(x, width)| x - width / 2.0).fold(f64::INFINITY, f64::min);
        let right = self.x.iter().zip(&self.widths).map(|(x, width)| x + width / 2.0).fold(f64::NEG_INFINITY, f64::max);
        let left = if left.is_finite() { left - GAP } else { 0.0 };
        let center = |vertex: usize| (self.x[vertex] - left, y[vertex]);
        Layout {
            centers: (0..vertices).map(center).collect(),
            bends: self.bends.iter().map(|bends| bends.iter().map(|&bend| center(bend)).collect()).collect(),
            width: if right.is_finite() { right - left + GAP } else { GAP },
            height: self.layers.len() as f64 * LAYER_HEIGHT,
        }
    }
}

fn mean(vertices: &[usize], x: &[f64]) -> Option<f64> {
    (!vertices.is_empty()).then(|| vertices.iter().map(|&vertex| x[vertex]).sum::<f64>() / vertices.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A residual block: 0 → 1 → 2 → 3 → 5, 0 → 5, 1 → 4 → 5.
    const EDGES: [(usize, usize); 7] = [(0, 1), (0, 5), (1, 2), (1, 4), (2, 3), (3, 5), (4, 5)];

    #[test]
    fn edges_go_down_and_boxes_do_not_overlap() {
        let widths = [60.0, 80.0, 100.0, 40.0, 120.0, 60.0];
        let layout = Layout::new(&EDGES, 6, &widths);
        for (from, to) in EDGES {
            assert!(layout.centers[from].1 < layout.centers[to].1, "{from} is above {to}");
        }
        for a in 0..6 {
            let ((x, y), half) = (layout.centers[a], widths[a] / 2.0);
            assert!(x - half >= 0.0 && x + half <= layout.width && y <= layout.height, "{a} is in the picture");
            for (b, (other_x, other_y)) in layout.centers.iter().enumerate().take(a) {
                assert!(*other_y != y || (x - other_x).abs() >= half + widths[b] / 2.0, "{a} and {b} overlap");
            }
        }
        assert_eq!(layout.bends[1].len(), 3, "the edge around the block bends in every layer that it passes");
    }

    #[test]
    fn nothing_is_a_small_picture() {
        let layout = Layout::new(&[], 0, &[]);
        assert!(layout.width.is_finite() && layout.height == 0.0);
    }
}
