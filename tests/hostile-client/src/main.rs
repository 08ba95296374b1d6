//! Holds half-sent frames open as the user that runs it: `hostile_client SOCKET CONNECTIONS FILES`.
//! Without files, it holds connections on which it sends nothing.
//! Prints how many connections the daemon keeps, then its refusals of the others. Ends when its
//! standard input closes.

use anyhow::{Context, Result};
use atoll_hostile_client::control::half_frames;
use std::io::{Read, Write};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().context("hostile_client SOCKET CONNECTIONS FILES");
    let (socket, count, files) = (next()?, next()?.parse()?, next()?.parse()?);
    let (kept, refusals) = half_frames(socket.as_ref(), count, files)?;
    let mut output = std::io::stdout();
    writeln!(output, "{}", kept.len())?;
    for refusal in refusals {
        writeln!(output, "{}", refusal.trim().replace('\n', " "))?;
    }
    writeln!(output, "end")?;
    output.flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(kept);
    Ok(())
}
