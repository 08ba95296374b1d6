//! Dominators and postdominators.
//!
//! Uses the Semi-NCA algorithm (Georgiadis and Tarjan): semidominators, then nearest common
//! ancestors. The simpler iterative algorithm of common graph libraries takes half a minute for a
//! hundred thousand nested loops, and modules are untrusted input.

/// A dominator tree: a node dominates another if it is on every path from the root to it. With
/// `next` and `previous` swapped it is a postdominator tree.
#[derive(Clone, Debug)]
pub struct Dominators {
    root: usize,
    immediate: Vec<Option<usize>>,
    /// Entry and exit times of a depth-first walk over the tree: a node dominates another if its
    /// interval contains the other's. `None` for nodes outside the tree.
    times: Vec<Option<(u32, u32)>>,
}

impl Dominators {
    /// The dominator tree of `count` nodes; nodes that are unreachable from the root are outside
    /// it.
    pub fn new<N, P>(count: usize, root: usize, next: impl Fn(usize) -> N, previous: impl Fn(usize) -> P) -> Dominators
    where
        N: IntoIterator<Item = usize>,
        P: IntoIterator<Item = usize>,
    {
        let immediate = Search::from(count, root, next).immediate_dominators(count, previous);
        let times = times(root, &immediate);
        Dominators { root, immediate, times }
    }

    /// The root, which dominates every node in the tree.
    pub fn root(&self) -> usize {
        self.root
    }

    /// The immediate dominator; `None` for the root and for nodes outside the tree.
    pub fn immediate(&self, node: usize) -> Option<usize> {
        self.immediate[node]
    }

    /// Whether `above` dominates `below`. Every node in the tree dominates itself; a node outside
    /// the tree neither dominates nor is dominated.
    pub fn dominates(&self, above: usize, below: usize) -> bool {
        match (self.times[above], self.times[below]) {
            (Some((first, last)), Some((time, _))) => (first..=last).contains(&time),
            _ => false,
        }
    }

    /// Whether a node is in the tree.
    pub fn contains(&self, node: usize) -> bool {
        self.times[node].is_some()
    }
}

/// A depth-first search. In this file, a vertex is identified by its number in the search.
struct Search {
    /// The node of each number.
    order: Vec<usize>,
    /// The number of each reached node.
    number: Vec<Option<usize>>,
    /// The parent in the search tree; the root is its own parent.
    parent: Vec<usize>,
}

impl Search {
    fn from<I: IntoIterator<Item = usize>>(nodes: usize, root: usize, next: impl Fn(usize) -> I) -> Search {
        let mut search = Search { order: Vec::new(), number: vec![None; nodes], parent: Vec::new() };
        let mut stack = vec![(root, 0)];
        while let Some((node, parent)) = stack.pop() {
            if search.number[node].is_some() {
                continue;
            }
            let number = search.order.len();
            search.number[node] = Some(number);
            search.order.push(node);
            search.parent.push(parent);
            stack.extend(next(node).into_iter().map(|to| (to, number)));
        }
        search
    }

    fn immediate_dominators<I: IntoIterator<Item = usize>>(
        self,
        nodes: usize,
        previous: impl Fn(usize) -> I,
    ) -> Vec<Option<usize>> {
        let count = self.order.len();
        let mut forest = Forest {
            above: self.parent.clone(),
            label: (0..count).collect(),
            semi: (0..count).collect(),
            path: Vec::new(),
        };
        for number in (1..count).rev() {
            let before = previous(self.order[number]).into_iter().filter_map(|node| self.number[node]);
            let least = before.map(|from| forest.least_semidominator(from, number + 1)).min();
            forest.semi[number] = least.unwrap_or(number).min(self.parent[number]);
        }
        // The immediate dominator is the nearest common ancestor of the semidominator and the
        // parent.
        let mut dominator = self.parent;
        for number in 1..count {
            let mut candidate = dominator[number];
            while candidate > forest.semi[number] {
                candidate = dominator[candidate];
            }
            dominator[number] = candidate;
        }
        let mut immediate = vec![None; nodes];
        for number in 1..count {
            immediate[self.order[number]] = Some(self.order[dominator[number]]);
        }
        immediate
    }
}

/// The vertices whose semidominators are known, as a forest with path compression.
struct Forest {
    above: Vec<usize>,
    /// The vertex with the least semidominator on the compressed path above each vertex.
    label: Vec<usize>,
    semi: Vec<usize>,
    /// Scratch for path compression.
    path: Vec<usize>,
}

impl Forest {
    /// The least semidominator of a vertex and its ancestors in the forest, which contains the
    /// vertices numbered `linked` and above.
    fn least_semidominator(&mut self, vertex: usize, linked: usize) -> usize {
        let mut top = vertex;
        while self.above[top] >= linked {
            self.path.push(top);
            top = self.above[top];
        }
        let root = self.above[top];
        let mut best = self.label[top];
        while let Some(below) = self.path.pop() {
            self.above[below] = root;
            if self.semi[best] < self.semi[self.label[below]] {
                self.label[below] = best;
            }
            best = self.label[below];
        }
        self.semi[self.label[vertex]]
    }
}

/// Numbers the tree in depth-first order, so that every subtree is a range.
fn times(root: usize, immediate: &[Option<usize>]) -> Vec<Option<(u32, u32)>> {
    let mut children = vec![Vec::new(); immediate.len()];
    for (index, above) in immediate.iter().enumerate() {
        if let Some(above) = above {
            children[*above].push(index);
        }
    }
    let mut times = vec![None; immediate.len()];
    let mut time = 0;
    let mut stack = vec![(root, 0, 0)];
    while let Some((node, child, start)) = stack.pop() {
        if child == 0 {
            time += 1;
        }
        let start = if child == 0 { time } else { start };
        match children[node].get(child) {
            Some(&next) => {
                stack.push((node, child + 1, start));
                stack.push((next, 0, 0));
            }
            None => times[node] = Some((start, time)),
        }
    }
    times
}
