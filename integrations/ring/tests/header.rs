//! The numbers in the header are those of the library.

use atoll_client::DataType;
use std::process::Command;

const HEADER: &str = include_str!("../include/atoll_ring.h");

#[test]
fn datatypes_have_the_numbers_of_the_header() {
    for (code, datatype) in DataType::ALL.iter().enumerate() {
        let line = format!("    ATOLL_{} = {code}", datatype.name());
        assert!(HEADER.lines().any(|found| found.trim_end_matches(',') == line), "{line}");
    }
    let count = HEADER.lines().filter(|line| line.contains(" = ")).count();
    assert_eq!(count, DataType::ALL.len() + 13, "datatypes and statuses");
}

#[test]
fn the_header_is_c_and_cpp() {
    for (language, standard) in [("c", "-std=c99"), ("c++", "-std=c++11")] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/include/atoll_ring.h");
        let mut command = Command::new("cc");
        command.args(["-x", language, standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", folder]);
        let output = command.output().expect("a C compiler");
        assert!(output.status.success(), "{language}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
