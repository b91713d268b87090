//! Files that are read.

use super::*;

#[test]
fn a_link_that_comes_after_the_look_leads_nowhere() {
    let place = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let path = place.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, name).unwrap();
        path.canonicalize().unwrap()
    };
    let [build, persist] = ["build", "persist"].map(|name| place.path().join(name));
    let (page, kept, outside) =
        (make("build/sub/page"), make("persist/page"), make("buildings/page"));
    let roots = RealRoots::of(&Roots { build: build.clone(), persist });
    assert!(roots.open(&page).is_some() && roots.open(&kept).is_some());
    assert!(roots.open(&outside).is_none() && roots.open_real(&outside).is_none());
    // The path was looked at by now.
    std::fs::remove_dir_all(build.join("sub")).unwrap();
    std::os::unix::fs::symlink(outside.parent().unwrap(), build.join("sub")).unwrap();
    assert!(roots.open_real(&page).is_none() && roots.open(&page).is_none());
    std::fs::remove_file(build.join("sub")).unwrap();
    std::fs::create_dir(build.join("sub")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &page, rustix::fs::Mode::RUSR).unwrap();
    assert!(roots.open(&page).is_none(), "and nobody waits at a pipe");
}
