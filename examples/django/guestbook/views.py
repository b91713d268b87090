from django.http import HttpResponse
from django.views.decorators.http import require_POST

from .models import Entry


def index(request):
    names = Entry.objects.order_by("id").values_list("name", flat=True)
    lines = ["Guests:"] + [f"- {name}" for name in names]
    return HttpResponse("\n".join(lines) + "\n", content_type="text/plain; charset=utf-8")


@require_POST
def sign(request):
    name = request.POST.get("name", "").strip()
    if not name or len(name) > 80:
        return HttpResponse("name: 1 to 80 characters\n", status=400, content_type="text/plain")
    Entry.objects.create(name=name)
    return HttpResponse("signed\n", status=201, content_type="text/plain")
