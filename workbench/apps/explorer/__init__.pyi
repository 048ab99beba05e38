from .address import Address as Address
from .explorer import Explorer as Explorer
from .launch import notebook_to_open as notebook_to_open
from .launch import open_explorer as open_explorer
from .measures import MEASURES as MEASURES
from .views import VIEWS as VIEWS
