//! The guest books of `examples/` in frameworks whose generated projects the plain run hosts.

use crate::frameworks::node;
use crate::project::copy_of_example;

#[test]
fn the_guestbook_of_yesod_answers() {
    let node = node();
    let project = node.path("yesod");
    copy_of_example("yesod", &project);
    let site = node.push(&project, "yesod");
    site.get("/").assert_ok("Guests:");
    assert_eq!(site.post_form("/sign", &[], "name=Ada").status, 201);
    site.get("/").assert_ok("- Ada");
}

#[test]
fn the_guestbook_of_django_answers() {
    let node = node();
    let project = node.path("django");
    copy_of_example("django", &project);
    let site = node.push(&project, "django");
    site.get("/").assert_ok("Guests:");
    assert_eq!(site.post_form("/sign", &[], "name=Ada").status, 201);
    site.get("/").assert_ok("- Ada");
    site.get("/static/guestbook.css").assert_ok("darkgreen");
}
