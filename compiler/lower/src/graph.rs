//! Control-flow graph algorithms on plain adjacency lists: orders, strongly connected components,
//! and dominators (by [`atoll_ptx::flow`]).

use atoll_ptx::flow::Dominators;

/// A directed graph over dense node numbers.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Successors of each node.
    pub succs: Vec<Vec<usize>>,
    /// Predecessors of each node.
    pub preds: Vec<Vec<usize>>,
}

impl Graph {
    /// The graph with these successor lists.
    pub fn new(succs: Vec<Vec<usize>>) -> Graph {
        let mut preds = vec![Vec::new(); succs.len()];
        for (node, out) in succs.iter().enumerate() {
            for &to in out {
                preds[to].push(node);
            }
        }
        Graph { succs, preds }
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.succs.len()
    }

    /// Dominators of the nodes that are reachable from `root`.
    pub(crate) fn dominators(&self, root: usize) -> Dominators {
        Dominators::new(
            self.len(),
            root,
            |node| self.succs[node].iter().copied(),
            |node| self.preds[node].iter().copied(),
        )
    }

    /// Post-dominators of the nodes from which `root` can be reached.
    pub(crate) fn postdominators(&self, root: usize) -> Dominators {
        Dominators::new(
            self.len(),
            root,
            |node| self.preds[node].iter().copied(),
            |node| self.succs[node].iter().copied(),
        )
    }

    /// Nodes reachable from `root`, in reverse postorder.
    pub fn reverse_postorder(&self, root: usize) -> Vec<usize> {
        let mut seen = vec![false; self.len()];
        let mut order = Vec::new();
        let mut stack = vec![(root, 0)];
        seen[root] = true;
        while let Some((node, next)) = stack.pop() {
            if let Some(&to) = self.succs[node].get(next) {
                stack.push((node, next + 1));
                if !std::mem::replace(&mut seen[to], true) {
                    stack.push((to, 0));
                }
            } else {
                order.push(node);
            }
        }
        order.reverse();
        order
    }

    /// Nodes reachable from `from` (included) by paths that avoid `stop` (excluded).
    pub fn reachable(&self, from: &[usize], stop: Option<usize>) -> Vec<bool> {
        let mut seen = vec![false; self.len()];
        let mut stack: Vec<usize> = from.iter().copied().filter(|&n| Some(n) != stop).collect();
        while let Some(node) = stack.pop() {
            if !std::mem::replace(&mut seen[node], true) {
                stack.extend(self.succs[node].iter().copied().filter(|&n| Some(n) != stop && !seen[n]));
            }
        }
        seen
    }

    /// Strongly connected components of `nodes`, without the edges for which `cut` holds, in
    /// topological order (Tarjan's algorithm).
    pub fn components(&self, nodes: &[usize], cut: impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
        self.components_again(&mut Tarjan::of(self.len()), nodes, cut)
    }

    /// Like [`Graph::components`], with a state that is reused. The time then depends on the number
    /// of `nodes`, not on the size of the graph.
    pub(crate) fn components_again(
        &self,
        state: &mut Tarjan,
        nodes: &[usize],
        cut: impl Fn(usize, usize) -> bool,
    ) -> Vec<Vec<usize>> {
        nodes.iter().for_each(|&node| state.index[node] = Tarjan::UNVISITED);
        for &node in nodes {
            if state.index[node] == Tarjan::UNVISITED {
                self.connect(node, state, &cut);
            }
        }
        nodes.iter().for_each(|&node| state.index[node] = Tarjan::OUTSIDE);
        let mut components = std::mem::take(&mut state.components);
        components.reverse();
        components
    }

    /// Tarjan's algorithm from one root. The stack is explicit because a kernel may have tens of
    /// thousands of blocks.
    fn connect(&self, root: usize, t: &mut Tarjan, cut: &impl Fn(usize, usize) -> bool) {
        let mut work = vec![(root, 0)];
        while let Some((node, next)) = work.pop() {
            if next == 0 {
                t.index[node] = t.counter;
                t.low[node] = t.counter;
                t.counter += 1;
                t.stack.push(node);
            }
            let Some(&to) = self.succs[node].get(next) else {
                if t.low[node] == t.index[node] {
                    t.pop_component(node);
                }
                if let Some(&(parent, _)) = work.last() {
                    t.low[parent] = t.low[parent].min(t.low[node]);
                }
                continue;
            };
            work.push((node, next + 1));
            if t.index[to] == Tarjan::OUTSIDE || cut(node, to) {
                continue;
            }
            if t.index[to] == Tarjan::UNVISITED {
                work.push((to, 0));
            } else if t.index[to] != Tarjan::DONE {
                t.low[node] = t.low[node].min(t.index[to]);
            }
        }
    }
}

/// The state of the search for components.
#[derive(Default)]
pub(crate) struct Tarjan {
    index: Vec<usize>,
    low: Vec<usize>,
    stack: Vec<usize>,
    counter: usize,
    components: Vec<Vec<usize>>,
}

impl Tarjan {
    /// Index of a node that is not part of the search.
    const OUTSIDE: usize = usize::MAX;
    /// Index of a node that has not been reached yet.
    const UNVISITED: usize = usize::MAX - 1;
    /// Index of a node whose component is complete.
    const DONE: usize = usize::MAX - 2;

    pub(crate) fn of(nodes: usize) -> Tarjan {
        Tarjan { index: vec![Tarjan::OUTSIDE; nodes], low: vec![0; nodes], ..Tarjan::default() }
    }

    fn pop_component(&mut self, node: usize) {
        let mut component = Vec::new();
        while let Some(top) = self.stack.pop() {
            self.index[top] = Self::DONE;
            component.push(top);
            if top == node {
                break;
            }
        }
        // A parent takes the minimum with `low`, which must not pull it below itself.
        self.low[node] = usize::MAX;
        self.components.push(component);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_come_in_topological_order() {
        // 0 → 1 ⇄ 2 → 3, 3 → 3
        let graph = Graph::new(vec![vec![1], vec![2], vec![1, 3], vec![3]]);
        let mut components = graph.components(&[0, 1, 2, 3], |_, _| false);
        components.iter_mut().for_each(|c| c.sort_unstable());
        assert_eq!(components, [vec![0], vec![1, 2], vec![3]]);
        let cut = graph.components(&[0, 1, 2, 3], |_, to| to == 1);
        assert_eq!(cut.len(), 4);
    }

    #[test]
    fn a_diamond_reconverges_below_its_branch() {
        let graph = Graph::new(vec![vec![1, 2], vec![3], vec![3], vec![]]);
        let (dominators, postdominators) = (graph.dominators(0), graph.postdominators(3));
        assert_eq!([0, 1, 2, 3].map(|node| dominators.immediate(node)), [None, Some(0), Some(0), Some(0)]);
        assert_eq!(postdominators.immediate(0), Some(3));
    }
}
