//! Model repositories on other machines, with a daemon. `runtime/remote` tests what becomes of wrong
//! objects.

use crate::functions::{manifest, packed};
use crate::kubernetes::script;
use crate::serve::atoll;
use anyhow::Result;
use atoll_tests::python;

#[test]
fn a_daemon_follows_a_repository_of_a_web_server() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("ar").tempdir_in("/tmp")?;
    let bundle = folder.path().join("affine.kg");
    packed(&manifest("affine"), &bundle)?;
    let (atoll, work) = (atoll(), folder.path().join("w"));
    let arguments = [atoll.as_os_str(), bundle.as_os_str(), work.as_os_str()];
    script(&python(), "remote_repository.py", &arguments, "all of it holds")
}
