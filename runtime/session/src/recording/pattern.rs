//! What several runs have in common, and the data in which they differ.

use crate::recording::runs::Run;
use crate::recording::steps::{Action, Param, Place, Step};
use crate::recording::unstorable::Unstorable;
use std::collections::HashMap;
use std::fmt::Debug;

/// The structure of runs. They do the same work on corresponding memory; only the data of some
/// copies to the device differs.
#[derive(Clone, Debug)]
pub struct Pattern<'s, 'a> {
    /// The first run.
    pub(super) run: Run<'s, 'a>,
    /// For each step, whether it is a copy to the device whose data differs between runs.
    pub(super) varies: Vec<bool>,
}

/// The data of a run that has the structure of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values<'r> {
    /// What it copies to the device where runs differ, in order.
    pub inputs: Vec<&'r [u8]>,
    /// What it copies to the host, in order.
    pub outputs: Vec<&'r [u8]>,
}

impl<'s, 'a> Pattern<'s, 'a> {
    /// Compares runs.
    ///
    /// # Errors
    /// If a run differs from the first one in more than data, if all data is equal, or if no data
    /// comes back. Also if data that differs may be computed from results: a program that copies
    /// back, computes and continues is not one function.
    pub fn of(runs: &[Run<'s, 'a>]) -> Result<Pattern<'s, 'a>, Unstorable> {
        let whole = |why: &str| Err(Unstorable::Whole(why.to_owned()));
        let Some((first, others)) = runs.split_first() else { return whole("there is no run to store") };
        let mut varies = vec![false; first.steps.len()];
        for (index, other) in others.iter().enumerate() {
            align(first, other).map_err(|why| Unstorable::Differs { run: index + 2, why })?;
            for (varies, (one, other)) in varies.iter_mut().zip(first.steps.iter().zip(&other.steps)) {
                *varies |= is_other_data(one, other);
            }
        }
        if !varies.contains(&true) {
            return whole("the runs copy the same data to the device; record runs with different inputs");
        }
        let downloads = |step: &&Step<'_>| matches!(step.action, Action::Download { .. });
        let Some(back) = first.steps.iter().position(downloads) else {
            return whole("the runs copy nothing back from the device");
        };
        if let Some(late) = varies[back..].iter().position(|varies| *varies) {
            let number = first.steps[back + late].call;
            let why = "copies data to the device that differs between runs, after results were copied back; it may be \
                       computed from them, so the work before and after is not one function";
            return Err(Unstorable::Call { number, call: "cuMemcpyHtoD", why: why.to_owned() });
        }
        Ok(Pattern { run: first.clone(), varies })
    }

    /// The calls that copy equal data to the device in all runs, after results were copied back. A
    /// constant is wrong if the program computes the data from results.
    pub fn constants_after_results(&self) -> Vec<u64> {
        let steps = self.run.steps.iter();
        let after = steps.skip_while(|step| !matches!(step.action, Action::Download { .. }));
        after.filter(|step| matches!(step.action, Action::Upload { .. })).map(|step| step.call).collect()
    }

    /// The data of another run.
    ///
    /// # Errors
    /// If it has another structure, or other data where the compared runs have the same.
    pub fn values<'r>(&self, run: &'r Run<'_, '_>) -> Result<Values<'r>, String> {
        align(&self.run, run)?;
        let mut values = Values { inputs: Vec::new(), outputs: Vec::new() };
        for ((one, other), varies) in self.run.steps.iter().zip(&run.steps).zip(&self.varies) {
            match &other.action {
                Action::Upload { bytes, .. } if *varies => values.inputs.push(bytes),
                Action::Upload { .. } if is_other_data(one, other) => {
                    return Err(format!(
                        "call {} copies data to the device that was equal in the compared runs, and is not here; \
                         compare more runs",
                        other.call
                    ));
                }
                Action::Download { bytes, .. } => values.outputs.push(bytes),
                _ => {}
            }
        }
        Ok(values)
    }
}

fn is_other_data(one: &Step<'_>, other: &Step<'_>) -> bool {
    match (&one.action, &other.action) {
        (Action::Upload { bytes: one, .. }, Action::Upload { bytes: other, .. }) => one != other,
        _ => false,
    }
}

/// Compares the structure of two runs: their work, and that it uses corresponding memory. The error
/// names the first difference.
fn align(first: &Run<'_, '_>, other: &Run<'_, '_>) -> Result<(), String> {
    let mut memory = Correspondence { first, other, to: HashMap::new(), from: HashMap::new() };
    for (index, (one, two)) in first.steps.iter().zip(&other.steps).enumerate() {
        let place = |why| format!("step {} (call {}) {why}", index + 1, two.call);
        memory.step(&one.action, &two.action).map_err(place)?;
    }
    let (one, two) = (first.steps.len(), other.steps.len());
    if one == two { Ok(()) } else { Err(format!("it has {two} steps instead of {one}")) }
}

/// Which buffer of another run corresponds to which one of the first run.
struct Correspondence<'r, 's, 'a, 't, 'b> {
    first: &'r Run<'s, 'a>,
    other: &'r Run<'t, 'b>,
    to: HashMap<usize, usize>,
    from: HashMap<usize, usize>,
}

impl Correspondence<'_, '_, '_, '_, '_> {
    fn step(&mut self, one: &Action<'_>, two: &Action<'_>) -> Result<(), String> {
        match (one, two) {
            (Action::Upload { to, bytes }, Action::Upload { to: to2, bytes: bytes2 }) => {
                same("has a size of", bytes.len(), bytes2.len())?;
                self.place(*to, *to2)
            }
            (Action::Download { from, bytes }, Action::Download { from: from2, bytes: bytes2 }) => {
                same("has a size of", bytes.len(), bytes2.len())?;
                self.place(*from, *from2)
            }
            (Action::Copy { to, from, bytes }, Action::Copy { to: to2, from: from2, bytes: bytes2 }) => {
                same("has a size of", bytes, bytes2)?;
                self.place(*to, *to2)?;
                self.place(*from, *from2)
            }
            (Action::Fill { to, rows, element }, Action::Fill { to: to2, rows: rows2, element: element2 }) => {
                same("has the rows", rows, rows2)?;
                same("has the element", element, element2)?;
                self.place(*to, *to2)
            }
            (
                Action::Launch { kernel, grid, block, shared_bytes, params },
                Action::Launch { kernel: kernel2, grid: grid2, block: block2, shared_bytes: shared2, params: params2 },
            ) => {
                if kernel != kernel2 {
                    let (one, two) = (&kernel.name, &kernel2.name);
                    let of = if one == two { " of another module" } else { "" };
                    return Err(format!("launches `{two}`{of} instead of `{one}`"));
                }
                let launch = |why| format!("launches `{}` with {why}", kernel.name);
                same("grid", grid, grid2).map_err(launch)?;
                same("block", block, block2).map_err(launch)?;
                same("dynamic shared memory", shared_bytes, shared2).map_err(launch)?;
                let mut pairs = params.iter().zip(params2).enumerate();
                pairs.try_for_each(|(index, (one, two))| self.param(index, one, two)).map_err(launch)
            }
            _ => Err(format!("is {} instead of {}", name_of(two), name_of(one))),
        }
    }

    fn param(&mut self, index: usize, one: &Param, two: &Param) -> Result<(), String> {
        let offsets = |param: &Param| param.addresses.iter().map(|(at, _)| *at).collect::<Vec<usize>>();
        if offsets(one) != offsets(two) {
            return Err(format!("an address instead of a number, or the reverse, in parameter {index}"));
        }
        if one.bytes != two.bytes {
            return Err(format!("{} instead of {} as parameter {index}", number(&two.bytes), number(&one.bytes)));
        }
        let mut places = one.addresses.iter().zip(&two.addresses);
        let place = |why| format!("parameter {index} {why}");
        places.try_for_each(|((_, one), (_, two))| self.place(*one, *two).map_err(place))
    }

    fn place(&mut self, one: Place, two: Place) -> Result<(), String> {
        same("at offset", one.offset, two.offset)?;
        let is_same = *self.to.entry(one.buffer).or_insert(two.buffer) == two.buffer
            && *self.from.entry(two.buffer).or_insert(one.buffer) == one.buffer;
        if !is_same {
            return Err("in another allocation".to_owned());
        }
        same("in an allocation of", self.first.buffers[one.buffer], self.other.buffers[two.buffer])
    }
}

fn same<T: PartialEq + Debug>(what: &str, one: T, two: T) -> Result<(), String> {
    if one == two { Ok(()) } else { Err(format!("{what} {two:?} instead of {one:?}")) }
}

/// The bytes of a parameter as the number that they are, or in hexadecimal.
fn number(bytes: &[u8]) -> String {
    match *bytes {
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).to_string(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]).to_string(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn name_of(action: &Action<'_>) -> String {
    match action {
        Action::Upload { bytes, .. } => format!("a copy of {} bytes to the device", bytes.len()),
        Action::Download { bytes, .. } => format!("a copy of {} bytes to the host", bytes.len()),
        Action::Copy { bytes, .. } => format!("a copy of {bytes} bytes on the device"),
        Action::Fill { .. } => "a fill".to_owned(),
        Action::Launch { kernel, .. } => format!("a launch of `{}`", kernel.name),
    }
}
