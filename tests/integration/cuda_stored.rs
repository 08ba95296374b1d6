//! CUDA programs in sessions of a daemon that store the work which they repeat.

#![cfg(target_arch = "x86_64")]

use crate::cancel::metric;
use crate::control::Setup;
use crate::cuda_resume::raw::VERSION;
use crate::cuda_sessions::{Program, all_gone, log, same, text};
use anyhow::{Result, ensure};
use atoll_tests::root;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// `few` may have two functions, and `none` has none left.
const CONFIG: &str = "[tenant.few]\nfunctions = 2\n[tenant.none]\nfunctions = 0\n";

/// Options of a tenant's program that stores functions after three runs.
fn storing(tenant: &str) -> [&str; 3] {
    ["--tenant", tenant, "--stored-functions"]
}

fn program() -> Result<Program> {
    Program::compile(&root().join("tests/programs/stored.c"))
}

/// Runs that were sent as one call, and runs that differed, in all sessions so far.
fn counts(setup: &Setup) -> Result<[f64; 2]> {
    let count = |name: &str| metric(&setup.daemon, &format!("atoll_cuda_stored_{name}_total"));
    Ok([count("calls")?, count("differences")?])
}

/// Checks that no function is left.
fn none_stored(setup: &Setup) -> Result<()> {
    all_gone(setup)?;
    for name in ["functions", "bytes"] {
        let left = metric(&setup.daemon, &format!("atoll_cuda_stored_{name}"))?;
        ensure!(left == 0.0, "{left} {name}");
    }
    Ok(())
}

#[test]
fn repeated_work_is_sent_as_calls_with_the_same_results() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = program()?;
    same(&setup, &program, &["--tenant", "team"], &["loop", "50"])?;
    ensure!(counts(&setup)? == [0.0; 2], "no program asked for it");
    // The first round also allocates; three are recorded, and one is stored.
    same(&setup, &program, &storing("team"), &["loop", "50"])?;
    ensure!(counts(&setup)? == [45.0, 0.0], "{:?}\n{}", counts(&setup)?, log(&setup));
    // Each round continues with the result of the one before.
    same(&setup, &program, &storing("other"), &["state", "50"])?;
    ensure!(counts(&setup)? == [90.0, 0.0], "{:?}", counts(&setup)?);
    same(&setup, &program, &["--tenant", "team", "--stored-functions=10"], &["state", "50"])?;
    ensure!(counts(&setup)? == [90.0 + 38.0, 0.0], "{:?}", counts(&setup)?);
    none_stored(&setup)
}

#[test]
fn the_next_session_of_a_tenant_stores_its_first_run() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = program()?;
    for (tenant, calls) in [("team", 15.0), ("team", 18.0), ("other", 15.0)] {
        let before = counts(&setup)?[0];
        same(&setup, &program, &storing(tenant), &["loop", "20"])?;
        let since = counts(&setup)?[0] - before;
        ensure!(since == calls, "{tenant}: {since} calls\n{}", log(&setup));
    }
    none_stored(&setup)
}

#[test]
fn a_program_that_changes_its_work_gets_the_right_results_and_is_told() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = program()?;
    same(&setup, &program, &storing("team"), &["shapes", "60"])?;
    let [calls, differences] = counts(&setup)?;
    ensure!(calls > 20.0 && differences == 1.0, "{calls} calls, {differences} differences");
    ensure!(log(&setup).contains("a run of a CUDA program differs from a stored function"), "{}", log(&setup));
    let output = program.command(&setup, &storing("other"), &["shapes", "60"]).output()?;
    let said = text(&output.stderr);
    ensure!(said.contains("atoll: 5 calls are stored function 1 from now on, with 256 bytes of input\n"), "{said}");
    ensure!(said.contains("a run has other calls than stored function 1; it is sent as 5 calls\n"), "{said}");
    none_stored(&setup)
}

#[test]
fn stored_functions_count_as_functions_of_the_tenant() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let program = program()?;
    same(&setup, &program, &storing("none"), &["loop", "20"])?;
    ensure!(counts(&setup)? == [0.0; 2], "it may have none");
    same(&setup, &program, &storing("few"), &["loop", "20"])?;
    ensure!(counts(&setup)? == [15.0, 0.0], "{:?}", counts(&setup)?);
    for wrong in ["--stored-functions=1", "--stored-functions=1001", "--stored-functions=x"] {
        let output = program.command(&setup, &[wrong], &["loop", "2"]).output()?;
        ensure!(output.status.code() == Some(2), "{wrong}: {}", text(&output.stderr));
    }
    none_stored(&setup)
}

#[test]
fn short_messages_with_much_work_end_with_their_client() -> Result<()> {
    let setup = Setup::start(&[], CONFIG)?;
    let record = |number: u16, fields: &[u8]| {
        [number.to_le_bytes().as_slice(), &[0; 2], &(8 + fields.len() as u32).to_le_bytes(), fields].concat()
    };
    let message = |sequence: u32, records: &[u8]| {
        [[0u8; 4].as_slice(), &sequence.to_le_bytes(), &(records.len() as u64).to_le_bytes(), records].concat()
    };
    // Function 1, which is stored or called, without inputs.
    let function = |number: u16| record(number, &[1u32.to_le_bytes().as_slice(), &[0; 8]].concat());
    let terms = b"stored_functions=2";
    let lengths = [VERSION, terms.len() as u32, 0, 0].map(u32::to_le_bytes).concat();
    let mut client = UnixStream::connect(setup.path("atoll.sock"))?;
    client.write_all(&[b"ATOLLSES".as_slice(), &lengths, terms].concat())?;
    let mut welcome = [0; 40];
    client.read_exact(&mut welcome)?;
    ensure!(welcome[12..16] == [0; 4], "the session is refused: {welcome:?}");
    let rest = u32::from_le_bytes(welcome[32..36].try_into()?) + u32::from_le_bytes(welcome[36..].try_into()?);
    client.read_exact(&mut vec![0; rest as usize])?;
    // Half a million questions about an event that does not exist, asked two thousand times more.
    let questions = record(23, &1u32.to_le_bytes()).repeat(500_000);
    client.write_all(&message(0, &[function(25), questions].concat()))?;
    let calls: Vec<u8> = (1..=2000).flat_map(|sequence| message(sequence, &function(26))).collect();
    client.write_all(&calls)?;
    drop(client);
    none_stored(&setup)?;
    ensure!(log(&setup).contains("the client has left"), "{}", log(&setup));
    Ok(())
}
