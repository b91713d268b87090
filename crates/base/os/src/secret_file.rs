//! Secrets that a node makes for itself and keeps: files that only their owner can read, each made
//! once and whole.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use model::hex::to_hex;

/// Two threads must not each make the same secret.
static MAKING: Mutex<()> = Mutex::new(());

/// Returns the secret of a file in hexadecimal digits, which is made of so many random bytes if it
/// is not there yet. A file of another length is an error: another secret would end what the old
/// one protects.
pub fn read_or_make(path: &Path, bytes: usize) -> anyhow::Result<String> {
    let _turn = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    match read(path) {
        Ok(text) if text.len() == 2 * bytes => return Ok(text),
        Ok(_) => bail!("{} is damaged: remove it to have another made", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("{}", path.display())),
    }
    make(path, bytes).with_context(|| format!("{} cannot be made", path.display()))
}

/// Returns the secret of a file that is there.
pub fn read(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

/// Returns so many random bytes in hexadecimal digits.
pub fn random_hex(bytes: usize) -> io::Result<String> {
    let (mut random, mut filled) = (vec![0; bytes], 0);
    while filled < bytes {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut random[filled..], flags)?;
    }
    Ok(to_hex(&random))
}

fn make(path: &Path, bytes: usize) -> anyhow::Result<String> {
    let text = random_hex(bytes)?;
    let fresh = path.with_extension("fresh");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_is_made_once_and_is_its_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let secret = read_or_make(&path, 32).unwrap();
        assert_eq!(secret.len(), 64);
        assert!(secret.bytes().all(|byte| byte.is_ascii_hexdigit()), "{secret}");
        assert_eq!(read_or_make(&path, 32).unwrap(), secret);
        assert_eq!(read(&path).unwrap(), secret);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_ne!(read_or_make(&directory.path().join("other"), 32).unwrap(), secret);
    }

    #[test]
    fn a_damaged_secret_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        fs::write(&path, "abc").unwrap();
        let error = read_or_make(&path, 32).unwrap_err();
        assert!(error.to_string().contains("remove it to have another made"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "abc");
    }
}
