//! What the router's own pages say.

use super::*;

#[test]
fn details_are_no_markup() {
    let mut out = Vec::new();
    BAD_ANSWER.write_with(Some("'<script>&\"'"), &mut out, false, true);
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("<p>'&lt;script&gt;&amp;&quot;'</p>"), "{text}");
}

#[test]
fn hints_are_for_nodes_alone() {
    for page in [STOPPED, NO_RELEASE, UNREACHABLE, BAD_ANSWER, ANSWER_TIMEOUT, BODY_TOO_LARGE] {
        let text = |page: Page| {
            let mut out = Vec::new();
            page.write(&mut out, false, true);
            String::from_utf8(out).unwrap()
        };
        assert!(text(page).contains(&format!("{} {}</p>", page.text, page.hint)));
        assert!(page.hint.contains("`cortex"));
        let bare = text(page.without_hint());
        assert!(bare.contains(&format!("{}</p>", page.text)) && !bare.contains('`'), "{bare}");
    }
}
