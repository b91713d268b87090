//! The kind of machine this is, as far as it decides whether a program that was built on one
//! machine runs on another.

use std::sync::OnceLock;

/// Returns the platform, such as `x86_64-glibc2.36-debian12`. It is empty if a part is unknown:
/// then this machine is like no other.
pub fn of_this_machine() -> &'static str {
    static TOLD: OnceLock<String> = OnceLock::new();
    TOLD.get_or_init(|| {
        let release = ["/etc/os-release", "/usr/lib/os-release"];
        let release = release.iter().find_map(|path| std::fs::read_to_string(path).ok());
        let library = c_library();
        let told = release.zip(library).and_then(|(release, library)| {
            Some(format!("{}-{library}-{}", std::env::consts::ARCH, system(&release)?))
        });
        told.unwrap_or_default()
    })
}

/// Returns the machine's own C library, whatever this program was linked with.
fn c_library() -> Option<String> {
    let output = std::process::Command::new("getconf")
        .arg("GNU_LIBC_VERSION")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(std::process::Stdio::null())
        .output();
    if let Ok(output) = output.as_ref()
        && output.status.success()
    {
        let text = plain(&String::from_utf8_lossy(&output.stdout));
        return (!text.is_empty()).then_some(text);
    }
    let musl = format!("/lib/ld-musl-{}.so.1", std::env::consts::ARCH);
    std::path::Path::new(&musl).exists().then(|| "musl".to_owned())
}

/// Returns the system with its version, such as `debian12`; one without versions is named alone.
fn system(os_release: &str) -> Option<String> {
    let field = |name: &str| {
        let value = os_release.lines().find_map(|line| line.strip_prefix(name))?;
        Some(plain(value.strip_prefix('=')?))
    };
    let id = field("ID").filter(|id| !id.is_empty())?;
    Some(format!("{id}{}", field("VERSION_ID").unwrap_or_default()))
}

/// Reduces the text to letters, digits and dots, since it becomes a part of a key.
fn plain(text: &str) -> String {
    let kept = |c: &char| c.is_ascii_alphanumeric() || *c == '.';
    text.chars().filter(kept).map(|c| c.to_ascii_lowercase()).take(LENGTH_MAX).collect()
}

/// The longest name of a system or version; longer ones are mistakes.
const LENGTH_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_named_with_its_version() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\nVERSION_ID=\"12\"\n";
        assert_eq!(system(debian).as_deref(), Some("debian12"));
        assert_eq!(system("ID=arch\nID_LIKE=x\n").as_deref(), Some("arch"));
        assert_eq!(system("ID=\"a::b c\"\n").as_deref(), Some("abc"));
        assert_eq!(system("NAME=x\n"), None);
    }

    #[test]
    fn the_platform_of_this_machine_is_found() {
        let told = of_this_machine();
        assert!(told.starts_with(std::env::consts::ARCH), "{told}");
        assert!(!told.contains(':') && told.split('-').count() == 3, "{told}");
    }
}
