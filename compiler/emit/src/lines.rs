//! Maps instructions to lines of PTX, as LLVM debug metadata with line tables only.
//!
//! A *location* is a line, and the distance to the line of the load that the instruction consumes
//! (see `atoll_kgraph::host_abi`). The distance is stored in the column. x86 reads memory in the
//! operation that uses the value, and LLVM gives such an operation the line of the use.

use std::collections::HashMap;
use std::fmt::Write as _;

/// The number of the first location. Lower numbers are unit, file, subprogram and its type.
const FIRST_LOCATION: u32 = 105;

/// The locations of one function, numbered in order of appearance.
#[derive(Debug, Default)]
pub struct Lines {
    numbers: HashMap<(u32, u16), u32>,
    list: Vec<(u32, u16)>,
    /// The location of the instructions being emitted.
    current: Option<u32>,
}

impl Lines {
    /// Sets the location of the following instructions: `line`, and the line of the load they
    /// consume. Line 0 means no location.
    pub fn locate(&mut self, line: u32, load: Option<u32>) {
        let above = load.and_then(|load| u16::try_from(line.checked_sub(load)?).ok()).unwrap_or(0);
        self.current = (line > 0).then(|| {
            *self.numbers.entry((line, above)).or_insert_with(|| {
                self.list.push((line, above));
                FIRST_LOCATION + self.list.len() as u32 - 1
            })
        });
    }

    /// The metadata suffix of an instruction emitted now.
    pub fn suffix(&self) -> Suffix {
        Suffix(self.current)
    }

    /// The metadata of a function of this name. The function refers to it as `!103`; its line is
    /// the smallest of its locations.
    pub fn metadata(&self, name: &str) -> String {
        let first = self.list.iter().map(|l| l.0).min().unwrap_or(0);
        let mut text = format!(
            "!llvm.dbg.cu = !{{!100}}\n!llvm.module.flags = !{{!101}}\n\
             !100 = distinct !DICompileUnit(language: DW_LANG_C99, file: !102, isOptimized: true, \
             runtimeVersion: 0, emissionKind: LineTablesOnly)\n\
             !101 = !{{i32 2, !\"Debug Info Version\", i32 3}}\n\
             !102 = !DIFile(filename: \"kernels.ptx\", directory: \"\")\n\
             !103 = distinct !DISubprogram(name: \"{name}\", scope: !102, file: !102, \
             line: {first}, type: !104, scopeLine: {first}, \
             spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !100)\n\
             !104 = !DISubroutineType(types: !0)\n"
        );
        for (number, (line, above)) in (FIRST_LOCATION..).zip(&self.list) {
            let _ = writeln!(text, "!{number} = !DILocation(line: {line}, column: {above}, scope: !103)");
        }
        text
    }
}

/// `, !dbg !107`, or nothing.
pub struct Suffix(Option<u32>);

impl std::fmt::Display for Suffix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |number| write!(f, ", !dbg !{number}"))
    }
}
