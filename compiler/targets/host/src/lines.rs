//! Which line of PTX an instruction comes from, as LLVM's debug metadata: line tables and nothing
//! else.
//!
//! A *location* is a line and how many lines above it stands the load that the instruction consumes
//! (see [`atoll_kgraph::host_abi`]); the latter rides in the column, since x86 reads memory in the
//! operation that uses the value and LLVM gives such an operation the line of the use.

use std::collections::HashMap;
use std::fmt::Write as _;

/// Metadata nodes that stand in front of the locations: unit, file, subprogram and its type.
const FIRST_LOCATION: u32 = 105;

/// The locations of one function, numbered as they come.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    numbers: HashMap<(u32, u16), u32>,
    list: Vec<(u32, u16)>,
    /// The location of what is written now.
    current: Option<u32>,
}

impl Lines {
    /// What comes next is of `line`, and may read what `load` loaded. Line 0 is no line.
    pub(crate) fn locate(&mut self, line: u32, load: Option<u32>) {
        let above = load.and_then(|load| u16::try_from(line.checked_sub(load)?).ok()).unwrap_or(0);
        self.current = (line > 0).then(|| {
            *self.numbers.entry((line, above)).or_insert_with(|| {
                self.list.push((line, above));
                FIRST_LOCATION + self.list.len() as u32 - 1
            })
        });
    }

    /// What an instruction written now ends with.
    pub(crate) fn suffix(&self) -> Suffix {
        Suffix(self.current)
    }

    /// The metadata of a function of this name, which starts at its first location. The function
    /// refers to it as `!103`.
    pub(crate) fn metadata(&self, name: &str) -> String {
        let first = self.list.iter().map(|l| l.0).min().unwrap_or(0);
        let mut text = format!(
            "!llvm.dbg.cu = !{{!100}}\n!llvm.module.flags = !{{!101}}\n\
             !100 = distinct !DICompileUnit(language: DW_LANG_C99, file: !102, isOptimized: true, runtimeVersion: 0, emissionKind: LineTablesOnly)\n\
             !101 = !{{i32 2, !\"Debug Info Version\", i32 3}}\n\
             !102 = !DIFile(filename: \"kernels.ptx\", directory: \"\")\n\
             !103 = distinct !DISubprogram(name: \"{name}\", scope: !102, file: !102, line: {first}, type: !104, scopeLine: {first}, spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !100)\n\
             !104 = !DISubroutineType(types: !0)\n"
        );
        for (number, (line, above)) in (FIRST_LOCATION..).zip(&self.list) {
            let _ = writeln!(text, "!{number} = !DILocation(line: {line}, column: {above}, scope: !103)");
        }
        text
    }
}

/// `, !dbg !107`, or nothing.
pub(crate) struct Suffix(Option<u32>);

impl std::fmt::Display for Suffix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |number| write!(f, ", !dbg !{number}"))
    }
}
