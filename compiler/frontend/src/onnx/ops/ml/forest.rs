//! Parses the two ONNX representations of decision trees into one.

use super::super::super::call::Call;
use super::super::super::error::{LowerError, LowerResult, invalid};
use super::super::super::read::read_tensor;
use crate::tensor::{Data, Tensor};
use std::collections::{BTreeMap, HashMap};

/// Largest number of nodes of all trees.
const NODES_MAX: usize = 1 << 24;

/// How a node compares a feature with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
    /// Whether the feature is a member of a set.
    Member,
}

const MODES: [Mode; 7] =
    [Mode::LessOrEqual, Mode::Less, Mode::GreaterOrEqual, Mode::Greater, Mode::Equal, Mode::NotEqual, Mode::Member];
const MODE_NAMES: [&str; 7] =
    ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"];

/// A node.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Branch(Branch),
    /// Target indices, and the weight that is added to each.
    Leaf(Vec<(i64, f64)>),
}

/// A decision node.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub(super) mode: Mode,
    pub(super) feature: i64,
    pub(super) value: f64,
    /// The set of a node with [`Mode::Member`].
    pub(super) members: Vec<f64>,
    /// Whether a NaN takes the true branch.
    pub(super) missing_is_true: bool,
    /// Indices of the child nodes.
    pub(super) on_true: usize,
    pub(super) on_false: usize,
}

/// An ensemble of trees.
pub(super) struct Forest {
    pub(super) nodes: Vec<Node>,
    pub(super) roots: Vec<usize>,
    /// Largest number of decisions on a path from a root to a leaf.
    pub(super) depth: usize,
}

impl Forest {
    fn new(nodes: Vec<Node>, roots: Vec<usize>) -> LowerResult<Forest> {
        let depth = depth(&nodes, &roots)?;
        Ok(Forest { nodes, roots, depth })
    }

    /// One more than the largest feature index that a node reads.
    pub(super) fn features(&self) -> i64 {
        let used = self.nodes.iter().filter_map(|n| if let Node::Branch(b) = n { Some(b.feature + 1) } else { None });
        used.max().unwrap_or(0)
    }

    /// All target entries of the leaves.
    pub(super) fn targets(&self) -> impl Iterator<Item = (i64, f64)> {
        self.nodes.iter().flat_map(|n| if let Node::Leaf(entries) = n { &entries[..] } else { &[] }).copied()
    }

    /// `TreeEnsembleRegressor` (`entries` is `target`) and `TreeEnsembleClassifier` (`class`),
    /// whose nodes are identified by a tree id and a node id.
    pub(super) fn by_numbers(call: &Call<'_>, entries: &str) -> LowerResult<Forest> {
        let trees = call.required_ints("nodes_treeids")?;
        let numbers = call.required_ints("nodes_nodeids")?;
        let count = trees.len();
        let features = call.required_ints("nodes_featureids")?;
        let (on_true, on_false) = (call.required_ints("nodes_truenodeids")?, call.required_ints("nodes_falsenodeids")?);
        let values = numbers_of(call, "nodes_values")?;
        let modes = call.strings("nodes_modes")?.unwrap_or_default();
        let missing = call.ints("nodes_missing_value_tracks_true")?.unwrap_or_default();
        let lengths = [numbers.len(), features.len(), on_true.len(), on_false.len(), values.len(), modes.len()];
        if lengths != [count; 6] || !(missing.is_empty() || missing.len() == count) || count == 0 || count > NODES_MAX {
            return invalid(format!(
                "the attributes of its {count} nodes have lengths {lengths:?} and {}",
                missing.len()
            ));
        }
        let places: HashMap<(i64, i64), usize> = trees.iter().copied().zip(numbers.iter().copied()).zip(0..).collect();
        if places.len() != count {
            return invalid("two nodes of one tree have the same id");
        }
        let find = |tree: i64, node: i64| {
            places
                .get(&(tree, node))
                .copied()
                .ok_or_else(|| LowerError::Invalid(format!("its tree {tree} has no node {node}")))
        };
        let mut nodes = Vec::with_capacity(count);
        for i in 0..count {
            nodes.push(match modes[i].as_str() {
                "LEAF" => Node::Leaf(Vec::new()),
                mode => Node::Branch(Branch {
                    mode: mode_named(mode)?,
                    feature: features[i],
                    value: values[i],
                    members: Vec::new(),
                    missing_is_true: missing.get(i).is_some_and(|m| *m != 0),
                    on_true: find(trees[i], on_true[i])?,
                    on_false: find(trees[i], on_false[i])?,
                }),
            });
        }
        add_entries(call, entries, &mut nodes, find)?;
        Forest::new(nodes, roots_of(&trees))
    }

    /// `TreeEnsemble`, in which nodes and leaves are referred to by index.
    pub(super) fn by_places(call: &Call<'_>) -> LowerResult<Forest> {
        let features = call.required_ints("nodes_featureids")?;
        let count = features.len();
        let links = ["nodes_truenodeids", "nodes_falsenodeids", "nodes_trueleafs", "nodes_falseleafs"]
            .map(|name| call.required_ints(name));
        let [on_true, on_false, true_leaf, false_leaf] = links;
        let (on_true, on_false, true_leaf, false_leaf) = (on_true?, on_false?, true_leaf?, false_leaf?);
        let (splits, modes) = (numbers_of(call, "nodes_splits")?, numbers_of(call, "nodes_modes")?);
        let missing = call.ints("nodes_missing_value_tracks_true")?.unwrap_or_default();
        let (targets, weights) = (call.required_ints("leaf_targetids")?, numbers_of(call, "leaf_weights")?);
        let lengths = [on_true.len(), on_false.len(), true_leaf.len(), false_leaf.len(), splits.len(), modes.len()];
        if lengths != [count; 6] || targets.len() != weights.len() || count + targets.len() > NODES_MAX {
            return invalid(format!(
                "the attributes of its {count} nodes have lengths {lengths:?}, those of its leaves {} and {}",
                targets.len(),
                weights.len()
            ));
        }
        // Leaves are stored after the nodes.
        let place = |at: i64, is_leaf: i64| {
            let (first, limit) = if is_leaf != 0 { (count, targets.len()) } else { (0, count) };
            let at = usize::try_from(at).ok().filter(|at| *at < limit);
            at.map(|at| first + at)
                .ok_or_else(|| LowerError::Invalid("a node of a tree refers to a node that does not exist".into()))
        };
        let mut sets = sets_of(&optional_numbers(call, "membership_values")?).into_iter();
        let mut nodes = Vec::with_capacity(count + targets.len());
        for i in 0..count {
            let mode = MODES.get(modes[i] as usize).copied().ok_or_else(|| {
                LowerError::Invalid(format!("its node mode {} is not one that ONNX defines", modes[i]))
            })?;
            let members = if mode == Mode::Member { sets.next() } else { Some(Vec::new()) };
            nodes.push(Node::Branch(Branch {
                mode,
                feature: features[i],
                value: splits[i],
                members: members.ok_or_else(|| {
                    LowerError::Invalid("it has fewer member sets than nodes with mode BRANCH_MEMBER".into())
                })?,
                missing_is_true: missing.get(i).is_some_and(|m| *m != 0),
                on_true: place(on_true[i], true_leaf[i])?,
                on_false: place(on_false[i], false_leaf[i])?,
            }));
        }
        nodes.extend(targets.iter().zip(&weights).map(|(target, weight)| Node::Leaf(vec![(*target, *weight)])));
        let roots =
            call.required_ints("tree_roots")?.into_iter().map(|root| place(root, 0)).collect::<LowerResult<_>>()?;
        Forest::new(nodes, roots)
    }
}

/// The first node of each tree, in the order of tree ids.
fn roots_of(trees: &[i64]) -> Vec<usize> {
    let mut roots = BTreeMap::new();
    for (place, tree) in trees.iter().enumerate() {
        roots.entry(*tree).or_insert(place);
    }
    roots.into_values().collect()
}

/// Adds the target entries to their leaves.
fn add_entries(
    call: &Call<'_>,
    entries: &str,
    nodes: &mut [Node],
    find: impl Fn(i64, i64) -> LowerResult<usize>,
) -> LowerResult<()> {
    let list = |what: &str| call.required_ints(&format!("{entries}_{what}"));
    let (trees, numbers, ids) = (list("treeids")?, list("nodeids")?, list("ids")?);
    let weights = numbers_of(call, &format!("{entries}_weights"))?;
    if [numbers.len(), ids.len(), weights.len()] != [trees.len(); 3] {
        return invalid(format!("it has {} leaf entries and {} weights", trees.len(), weights.len()));
    }
    for i in 0..trees.len() {
        match &mut nodes[find(trees[i], numbers[i])?] {
            Node::Leaf(entries) => entries.push((ids[i], weights[i])),
            Node::Branch(_) => {
                return invalid(format!("node {} of tree {} has a weight but is not a leaf", numbers[i], trees[i]));
            }
        }
    }
    Ok(())
}

fn mode_named(name: &str) -> LowerResult<Mode> {
    let found = MODE_NAMES.iter().position(|known| *known == name).map(|i| MODES[i]);
    match found {
        Some(mode) if mode != Mode::Member => Ok(mode),
        _ => invalid(format!("its node mode {name:?} is not one that ONNX defines")),
    }
}

/// An attribute of floats, or the tensor attribute that replaces it for doubles.
fn numbers_of(call: &Call<'_>, name: &str) -> LowerResult<Vec<f64>> {
    let found = optional_numbers(call, name)?;
    if found.is_empty() { invalid(format!("attribute {name} is missing")) } else { Ok(found) }
}

pub(super) fn optional_numbers(call: &Call<'_>, name: &str) -> LowerResult<Vec<f64>> {
    for tensor in [format!("{name}_as_tensor"), name.to_owned()] {
        // The older operators use the plain name for floats.
        if tensor == name && call.floats(name).is_ok() {
            break;
        }
        if let Some(tensor) = call.tensor(&tensor)? {
            let literal = read_tensor(tensor, name, None).map_err(LowerError::in_attribute)?;
            let tensor = Tensor::from_bytes(literal.dtype, &literal.shape, &literal.bytes);
            return Ok(tensor.map_or_else(Vec::new, |t| match t.data {
                Data::Float(values) => values,
                Data::Int(values) => values.into_iter().map(|v| v as f64).collect(),
            }));
        }
    }
    Ok(call.floats(name)?.unwrap_or_default().into_iter().map(f64::from).collect())
}

/// Splits concatenated sets; a NaN ends each set.
fn sets_of(values: &[f64]) -> Vec<Vec<f64>> {
    let mut sets: Vec<Vec<f64>> = values.split(|v| v.is_nan()).map(<[f64]>::to_vec).collect();
    sets.pop();
    sets
}

/// The largest number of decisions on a path; an error if there is a cycle.
fn depth(nodes: &[Node], roots: &[usize]) -> LowerResult<usize> {
    let mut deepest = 0;
    let mut visits = 0;
    let mut waiting: Vec<(usize, usize)> = roots.iter().map(|root| (*root, 0)).collect();
    while let Some((place, above)) = waiting.pop() {
        visits += 1;
        if visits > nodes.len() + roots.len() {
            return invalid("its nodes do not form trees: a node is reached on two paths");
        }
        match &nodes[place] {
            Node::Leaf(_) => deepest = deepest.max(above),
            Node::Branch(branch) => waiting.extend([(branch.on_true, above + 1), (branch.on_false, above + 1)]),
        }
    }
    Ok(deepest)
}
